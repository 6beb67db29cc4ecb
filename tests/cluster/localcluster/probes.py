"""Whether an address answers yet."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def answers(address: str, *, authority: Path) -> bool:
    """Whether `https://…` says 200, or something listens at `tcp://host:port` or `unix:///path`."""
    try:
        if address.startswith("https://"):
            return _https(address, authority)
        _connect(address)
    except OSError:
        return False
    return True


def _https(address: str, authority: Path) -> bool:
    context = ssl.create_default_context(cafile=str(authority))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(address, timeout=10) as reply:
        status: int = reply.status
    return status == 200


def _connect(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(parts.path)
        return
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=2):
        pass


def wait(condition: Callable[[], bool], *, timeout: float, interval: float = 0.05) -> bool:
    """Whether the condition came true within so many seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
