"""Cards from a file: a provider as another vendor might bring it, for tests that need no driver."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from egpu.types import Card
from egpu_agent.providers.base import CardProcess, DeviceEdits, Fault, ProviderError, Reading


class FileProvider:
    """Reads ``{"cards": [...], "lost": [...], "processes": [[uuid, pid, bytes]], "error": ""}`` anew each time."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Reading:
        raw = self._raw()
        cards = tuple(Card.model_validate(card) for card in raw.get("cards", ()))
        return Reading(cards=cards, lost=tuple(raw.get("lost", ())), driver_version="1", cuda_version="12.8")

    def wait(self, seconds: float) -> tuple[Fault, ...]:
        time.sleep(seconds)
        return ()

    def processes(self, uuids: Sequence[str]) -> tuple[CardProcess, ...]:
        listed = (CardProcess(uuid=u, pid=p, memory=m) for u, p, m in self._raw().get("processes", ()))
        return tuple(process for process in listed if process.uuid in uuids)

    def edits(self, cards: Sequence[Card]) -> DeviceEdits:
        return DeviceEdits(edits={"env": [f"CARDS={','.join(card.uuid for card in cards)}"]}, version="0.3.0")

    def _raw(self) -> dict[str, Any]:
        raw: dict[str, Any] = json.loads(self._path.read_text())
        if raw.get("error"):
            raise ProviderError(raw["error"], reason="DriverFailed")
        return raw
