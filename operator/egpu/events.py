"""Events: what has happened to an object, for people, said once.

The same words about the same object are sent again only after ten minutes. Sending is done behind the caller's back
and its failure is only logged: an event never holds up what it speaks of.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from egpu import errors
from egpu.kube import Kube
from egpu.resources import EVENTS, Resource
from egpu.types import Meta

logger = logging.getLogger(__name__)

SILENCE: Final = 600.0
REMEMBERED: Final = 4096
NOTE_MOST: Final = 1000
"""Bytes; the API server refuses a note of more than 1,024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is to be said: a constant reason, what was being done, and a sentence."""

    reason: str
    action: str
    note: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object an event is about."""

    resource: Resource
    name: str
    uid: str
    namespace: str = ""

    @classmethod
    def of(cls, resource: Resource, meta: Meta) -> "Subject":
        """The subject that is an object of a kind."""
        return cls(resource=resource, name=meta.name, uid=meta.uid, namespace=meta.namespace)


def normal(*, reason: str, action: str, note: str) -> Event:
    """Something went as asked."""
    return Event(reason=reason, action=action, note=note)


def warning(*, reason: str, action: str, note: str) -> Event:
    """Something somebody should look at."""
    return Event(reason=reason, action=action, note=note, warning=True)


class Recorder:
    """Sends events under one reporting name."""

    def __init__(self, *, kube: Kube, controller: str, instance: str) -> None:
        self._kube = kube
        self._controller = controller
        self._instance = instance
        self._said: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()

    def say(self, subject: Subject, event: Event) -> None:
        """Sends an event in the background, unless the same was said lately."""
        if self._said_lately(subject, event):
            return
        task = asyncio.get_running_loop().create_task(self._send(subject, event))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def drain(self) -> None:
        """Waits until everything said has been sent."""
        await asyncio.gather(*self._sending)

    def _said_lately(self, subject: Subject, event: Event) -> bool:
        key, now = (subject.uid, event.reason, event.note), time.monotonic()
        last = self._said.get(key)
        if last is not None and now - last < SILENCE:
            return True
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return False

    async def _send(self, subject: Subject, event: Event) -> None:
        namespace = subject.namespace or "default"
        try:
            await self._kube.create(EVENTS, self._body(subject, event, namespace), namespace=namespace)
        except errors.KubeError as error:
            logger.info("event %s about %s %s not sent: %s", event.reason, subject.resource.kind, subject.name, error)

    def _body(self, subject: Subject, event: Event, namespace: str) -> dict[str, Any]:
        regarding = {
            "apiVersion": subject.resource.api_version,
            "kind": subject.resource.kind,
            "name": subject.name,
            "namespace": subject.namespace,
            "uid": subject.uid,
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{subject.name[:200]}.{uuid4().hex[:16]}", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": self._controller,
            "reportingInstance": self._instance[:128],
            "action": event.action,
            "reason": event.reason,
            "regarding": {key: value for key, value in regarding.items() if value},
            "note": event.note.encode()[:NOTE_MOST].decode(errors="ignore"),
            "type": "Warning" if event.warning else "Normal",
        }
