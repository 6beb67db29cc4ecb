"""The agent's memory of what it answered kubelet: nonces and attachments, versioned and checksummed.

The file is ``{"version", "readableFrom", "checksum", "data"}``. A newer agent may write more than an older one knows:
``readableFrom`` names the oldest version that may read the file all the same, which then passes over what it does not
know. So an agent can be rolled back as well as forward. The checksum is over ``data`` in canonical JSON.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import Field, ValidationError

from egpu.types import CardShare, Isolation, Wire
from egpu_agent import files

logger = logging.getLogger(__name__)

VERSION: Final = 1
READABLE_FROM: Final = 1
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From a version to the next: how its ``data`` becomes the next version's."""


class Attachment(Wire):
    """A slice given to a container. ``revoked``: no start any more, its CDI spec is gone."""

    slice_name: str
    slice_uid: str = Field(alias="sliceUID")
    pod_uid: str = Field(alias="podUID")
    pod_namespace: str
    pod_name: str
    container: str
    isolation: Isolation
    cards: tuple[CardShare, ...]
    revoked: bool = False


class Ticket(Wire):
    """One answer to Allocate: device ids, the nonce they were given, and what the nonce came to stand for."""

    nonce: str
    resource: str
    ids: tuple[str, ...]
    time: float = 0.0
    attachment: Attachment | None = None


class CheckpointError(ValueError):
    """A file that is not a checkpoint this version can read."""


def encode(tickets: Iterable[Ticket]) -> bytes:
    """The file's content."""
    data = {"tickets": [ticket.model_dump(mode="json", by_alias=True) for ticket in tickets]}
    header = {"version": VERSION, "readableFrom": READABLE_FROM, "checksum": _checksum(data)}
    return json.dumps({**header, "data": data}, indent=1).encode()


def decode(content: bytes) -> dict[str, Ticket]:
    """Tickets by nonce.

    Raises:
        CheckpointError: broken, or written by a version this one cannot read.
    """
    try:
        raw = json.loads(content)
        version, oldest, data = int(raw["version"]), int(raw["readableFrom"]), raw["data"]
        if raw["checksum"] != _checksum(data):
            raise CheckpointError("the checksum does not match")
        if oldest > VERSION:
            raise CheckpointError(
                f"written in version {version}, readable from {oldest} on; this agent reads {VERSION}"
            )
        for step in range(version, VERSION):
            data = UPGRADES[step](data)
        tickets = [Ticket.model_validate(entry) for entry in data["tickets"]]
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{first['loc']}: {first['msg']}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{error!r}" if not isinstance(error, CheckpointError) else str(error)) from error
    return {ticket.nonce: ticket for ticket in tickets}


@dataclass(slots=True, kw_only=True)
class Store:
    """The tickets, kept on disk: every change before its coroutine returns; changes made meanwhile share a write."""

    path: Path
    tickets: dict[str, Ticket] = field(default_factory=dict)
    _changed: int = 0
    _written: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def load(self, rebuild: Callable[[], Mapping[str, Ticket]]) -> None:
        """Reads the file; a missing or broken one is set aside and the tickets are rebuilt from what kubelet knows."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(self.path.parent, prefix=self.path.name)
        read = self._read()
        if read is not None:
            self.tickets = read
            return
        self.tickets = dict(rebuild())
        logger.info("rebuilt %d tickets from kubelet's checkpoint", len(self.tickets))

    def _read(self) -> dict[str, Ticket] | None:
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            logger.info("%s does not exist yet", self.path)
        except CheckpointError as error:
            aside = self.path.with_suffix(".broken")
            self.path.replace(aside)
            logger.error("%s cannot be used: %s. It is set aside as %s", self.path, error, aside)  # noqa: TRY400
        return None

    async def put(self, *tickets: Ticket) -> None:
        """Adds or replaces tickets."""
        self.tickets.update({ticket.nonce: ticket for ticket in tickets})
        await self._flush()

    async def drop(self, nonces: Iterable[str]) -> None:
        """Forgets tickets; nothing is written when none was known."""
        known = [nonce for nonce in nonces if self.tickets.pop(nonce, None)]
        if known:
            await self._flush()

    def of_slice(self, uid: str) -> list[Ticket]:
        """The tickets attached to a slice."""
        return [t for t in self.tickets.values() if t.attachment is not None and t.attachment.slice_uid == uid]

    async def _flush(self) -> None:
        self._changed += 1
        wanted = self._changed
        async with self._lock:
            if self._written >= wanted:
                return
            now = self._changed
            content = encode(self.tickets.values())
            await asyncio.to_thread(files.write, self.path, content, mode=0o600, sync=True)
            self._written = now


def _checksum(data: object) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
