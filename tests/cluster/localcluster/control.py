"""Orders to a process 1: one line of JSON there, one back, on a socket in the cluster's or the node's folder.

The kernel tells the caller which process listens, in the caller's own numbering: so the machine finds its namespaces.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import struct
import threading
from typing import TYPE_CHECKING, Any

from localcluster.constants import CONTROL_SOCKET
from localcluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Order = dict[str, Any]


def listen(folder: Path) -> socket.socket:
    """Listen in that folder, in place of a former process 1.

    Changes into the folder meanwhile, for a socket's path may have 107 bytes only. Not for a process with threads.
    """
    before = os.getcwd()  # noqa: PTH109 - a path to come back to
    os.chdir(folder)
    try:
        (folder / CONTROL_SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(CONTROL_SOCKET)
        listener.listen(16)
    finally:
        os.chdir(before)
    return listener


def serve(listener: socket.socket, answer: Callable[[Order], object]) -> None:
    """Answer orders in threads of their own, for good. A ClusterError becomes the caller's."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if line:
                self.wfile.write(json.dumps(_reply(answer, line)).encode() + b"\n")

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    server = Server("", Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    threading.Thread(target=server.serve_forever, name="control", daemon=True).start()


def _reply(answer: Callable[[Order], object], line: bytes) -> dict[str, object]:
    try:
        return {"result": answer(json.loads(line))}
    except (ClusterError, OSError) as error:
        return {"error": str(error)}


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_RDONLY)
    try:
        connection.connect(f"/proc/self/fd/{opened}/{CONTROL_SOCKET}")
    except OSError:
        connection.close()
        raise ClusterError(f"nothing runs in {folder}") from None
    finally:
        os.close(opened)
    return connection


def first_process(folder: Path) -> int:
    """The pid, as the caller sees it, of the process 1 that listens in that folder; ClusterError when none does."""
    with _connect(folder) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def call(folder: Path, order: str, **arguments: object) -> Any:
    """Give an order and wait for its outcome.

    Raises:
        ClusterError: Nothing runs there, it ended meanwhile, or it refused.
    """
    with _connect(folder) as connection, connection.makefile("rwb") as stream:
        stream.write(json.dumps({"order": order, **arguments}).encode() + b"\n")
        stream.flush()
        line = stream.readline()
    if not line:
        raise ClusterError(f"process 1 of {folder} ended before it answered {order!r}")
    reply = json.loads(line)
    if "error" in reply:
        raise ClusterError(reply["error"])
    return reply["result"]
