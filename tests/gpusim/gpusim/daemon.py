"""The per-node daemon: who is a client, what the dead leave behind, faults, and utilisation samples."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpusim import build, faults
from gpusim.state import (
    CARDS_DIR,
    HISTORY_FILE,
    LAYOUT,
    MAGIC,
    MAX_SLOTS,
    SAMPLES,
    SOCKET_FILE,
    STATE_FILE,
    Keeper,
    State,
    text,
    total,
)

if TYPE_CHECKING:
    from gpusim.config import Card, Node

_UCRED: Final = struct.Struct("3i")
_LOCK_FILE: Final = "daemon.lock"
FIRST_BUS: Final = 0x04


@dataclass(slots=True)
class _Client:
    """A connected process and the slot it was given."""

    slot: int
    pid: int
    pidfd: int = -1


@dataclass(slots=True)
class _Sampler:
    """What the last sample saw, by (slot, generation, card): busy ns."""

    at_ns: int = 0
    busy: dict[tuple[int, int, int], int] = field(default_factory=dict)


class DaemonError(RuntimeError):
    """The daemon cannot serve this directory."""


class Daemon:
    """Serves one node directory until stopped.

    Attributes:
        directory: where `state`, `ctl.sock`, `cards/` and `history.jsonl` are.
        node: the description of the node.
    """

    def __init__(self, *, directory: Path, node: Node) -> None:
        self.directory = directory
        self.node = node
        self._sampler = _Sampler()
        self._generation = 0
        self._lock = self._own_directory()
        self.state = create_state(directory, node)
        self._keeper = Keeper(self.state, build.build() / build.NODE_LIBRARY.soname)
        self._history = (directory / HISTORY_FILE).open("a", buffering=1)

    def _own_directory(self) -> int:
        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise DaemonError(f"{self.directory}: another gpusim daemon serves it; stop that or use --dir") from error
        return descriptor

    async def serve(self, *, ready: asyncio.Event | None = None) -> None:
        """Serve until SIGTERM or SIGINT."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        path = self.directory / SOCKET_FILE
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connected, path=str(path), backlog=1024)
        path.chmod(0o666)
        sampling = asyncio.create_task(self._sample_forever())
        print("ready", flush=True)
        if ready:
            ready.set()
        try:
            await stop.wait()
        finally:
            sampling.cancel()
            server.close()
            path.unlink(missing_ok=True)
            self.state.root.magic = 0
            self._history.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            request = _request(line)
            if request.get("op") == "attach":
                await self._attach(request, reader, writer)
            elif line:
                writer.write((json.dumps(self._control(request)) + "\n").encode())
                await writer.drain()
        except (ConnectionError, ValueError, TypeError, asyncio.CancelledError):
            pass  # nobody is left to answer, or the daemon ends
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _attach(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        slot = None if request.get("layout") != LAYOUT else self._free_slot()
        if slot is None:
            writer.write(b"NO\n")
            return
        client = self._admit(slot, _peer_pid(writer))
        try:
            writer.write(f"OK {client.slot} {self.state.root.slots[client.slot].generation}\n".encode())
            await self._until_dead(client, reader)
        finally:
            self._forget(client)

    async def _until_dead(self, client: _Client, reader: asyncio.StreamReader) -> None:
        """The end of the process itself: a child may hold its connection open, or it may have closed that.

        Where the kernel cannot tell of a process's end, the end of the connection stands for it.
        """
        if client.pidfd < 0:
            await reader.read()
            return
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(client.pidfd, gone.set)
        await gone.wait()

    def _free_slot(self) -> int | None:
        root = self.state.root
        for i in range(root.slots_high):
            if not root.slots[i].live:
                return i
        return int(root.slots_high) if root.slots_high < MAX_SLOTS else None

    def _admit(self, index: int, pid: int) -> _Client:
        root = self.state.root
        slot = root.slots[index]
        self._generation += 1
        for usage in slot.card:
            _clear(usage)
        slot.generation = self._generation
        slot.pid = pid
        slot.start_ns = time.time_ns()
        slot.comm = _read(f"/proc/{pid}/comm").strip().encode()[:31]
        slot.cgroup = _cgroup(pid).encode()[:255]
        slot.live = 1
        root.slots_high = max(root.slots_high, index + 1)
        client = _Client(index, pid)
        with contextlib.suppress(OSError, AttributeError):
            client.pidfd = os.pidfd_open(pid)
        return client

    def _forget(self, client: _Client) -> None:
        if client.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(client.pidfd)
            os.close(client.pidfd)
            client.pidfd = -1
        for i, _ in self.state.cards:
            with self._keeper.locked(i, dead_slot=client.slot):
                pass  # whatever lock it died with is free again, though its memory may stay
        if self.node.release_delay_ms:
            delay = self.node.release_delay_ms / 1000
            asyncio.get_running_loop().call_later(delay, self._release, client)
        else:
            self._release(client)

    def _release(self, client: _Client) -> None:
        slot = self.state.root.slots[client.slot]
        self._remember(slot)
        for i, card in self.state.cards:
            with self._keeper.locked(i, dead_slot=client.slot):
                usage = slot.card[i]
                card.used -= total(usage)
                _clear(usage)
        slot.live = 0

    def _remember(self, slot: Any) -> None:
        cards = {text(card.uuid): usage_row(slot.card[i]) for i, card in self.state.cards if slot.card[i].peak}
        row = {
            "pid": slot.pid,
            "comm": text(slot.comm),
            "cgroup": text(slot.cgroup),
            "start_ns": slot.start_ns,
            "end_ns": time.time_ns(),
            "cards": cards,
        }
        if not self._history.closed:
            self._history.write(json.dumps(row) + "\n")

    def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request.get("op") == "fault":
                faults.apply(self.state, self.directory, faults.Fault.model_validate(request.get("fault")))
                self._keeper.wake()
                return {"ok": True}
            return {"ok": False, "error": f'unknown op {request.get("op")!r}; write "fault" or "attach"'}
        except (faults.FaultError, ValueError) as error:
            return {"ok": False, "error": str(error)}

    async def _sample_forever(self) -> None:
        while True:
            await asyncio.sleep(self.node.sample_ms / 1000)
            self._sample(time.monotonic_ns(), time.time_ns() // 1000)

    def _sample(self, now_ns: int, wall_us: int) -> None:
        period = max(1, now_ns - self._sampler.at_ns)
        busy: dict[tuple[int, int, int], int] = {}
        percent = dict.fromkeys(range(self.state.root.card_count), 0)
        for index, slot in self.state.live_slots:
            for i, card in self.state.cards:
                usage = slot.card[i]
                if not usage.contexts:
                    continue
                key = (index, slot.generation, i)
                busy[key] = busy_ns(usage, now_ns)
                share = min(100, round(100 * max(0, busy[key] - self._sampler.busy.get(key, 0)) / period))
                percent[i] += share
                _push_sample(card, wall_us=wall_us, pid=slot.pid, sm=share)
        for i, card in self.state.cards:
            card.util_sm = min(100, percent[i])
            card.util_mem = card.util_sm // 2
        self._sampler = _Sampler(now_ns, busy)


def create_state(directory: Path, node: Node) -> State:
    """Write a fresh state for a node: no processes, all cards well."""
    path = directory / STATE_FILE
    path.unlink(missing_ok=True)
    state = State(path, create=True)
    path.chmod(0o666)
    root = state.root
    root.layout = LAYOUT
    root.card_count = len(node.cards)
    root.cuda_version = node.driver.cuda
    root.granule = node.granule
    root.driver_version = node.driver.version.encode()
    root.node = node.name.encode()[:63]
    for card in node.cards:
        _fill_card(root.cards[card.index], card)
    _card_files(directory, node)
    root.magic = MAGIC
    return state


def _fill_card(out: Any, card: Card) -> None:
    model = card.model
    out.uuid = card.uuid.encode()
    out.name = model.name.encode()
    out.serial = f"13{card.index:02d}{int(card.uuid[4:12], 16) % 10**9:09d}".encode()
    out.reserved = card.reserved_bytes
    out.memory = card.memory_bytes - card.reserved_bytes
    out.context_bytes = card.context_bytes
    out.module_bytes = card.module_bytes
    out.fp32_gflops = int(model.fp32_tflops * 1000)
    out.sm_count, out.threads_per_sm = card.sm_count, model.threads_per_sm
    out.cc_major, out.cc_minor = model.compute
    out.architecture, out.brand = model.architecture, model.brand
    out.clock_mhz, out.memory_clock_mhz = model.clock_mhz, model.memory_clock_mhz
    out.bus_width, out.l2_bytes = model.bus_width, model.l2_mib << 20
    out.shared_per_sm = model.shared_per_sm_kib << 10
    out.power_limit_mw = model.power_w * 1000
    out.pci_bus, out.pci_device_id = FIRST_BUS + card.index, model.pci_device_id
    out.minor, out.nvlinks, out.numa_node = card.index, model.nvlinks, card.numa_node


def _card_files(directory: Path, node: Node) -> None:
    folder = directory / CARDS_DIR
    folder.mkdir(exist_ok=True)
    for stale in folder.iterdir():
        stale.unlink()
    for card in node.cards:
        (folder / card.uuid).write_text(f"{card.index}\n")


def usage_row(usage: Any) -> dict[str, int]:
    """One process's holdings on one card, as the history and the truth show them."""
    return asdict(
        Usage(
            used=total(usage),
            context=usage.context,
            module=usage.module,
            data=usage.data,
            peak=usage.peak,
            busy_ns=busy_ns(usage, time.monotonic_ns()),
            launches=usage.launches,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Holdings of one process on one card: bytes, and ns of device time."""

    used: int
    context: int
    module: int
    data: int
    peak: int
    busy_ns: int
    launches: int


def busy_ns(usage: Any, now_ns: int) -> int:
    """Device time that has already happened."""
    return max(0, int(usage.busy_ns) - max(0, int(usage.busy_until_ns) - now_ns))


def _clear(usage: Any) -> None:
    usage.context = usage.module = usage.data = usage.peak = 0
    usage.busy_ns = usage.busy_until_ns = usage.launches = 0
    usage.contexts = 0


def _push_sample(card: Any, *, wall_us: int, pid: int, sm: int) -> None:
    sample = card.samples[card.sample_seq % SAMPLES]
    sample.time_us, sample.pid, sample.sm, sample.mem = wall_us, pid, sm, sm // 2
    card.sample_seq += 1


def _request(line: bytes) -> dict[str, Any]:
    value = json.loads(line or b"{}")
    if not isinstance(value, dict):
        raise TypeError("a request is a JSON object")
    return value


def _peer_pid(writer: asyncio.StreamWriter) -> int:
    peer = writer.get_extra_info("socket")
    pid, _, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(pid)


def _cgroup(pid: int) -> str:
    """The process's cgroup path; on a hybrid node v2's may be the root while v1's say more, so the longest counts."""
    lines = _read(f"/proc/{pid}/cgroup").splitlines()
    return max((line.split(":", 2)[2] for line in lines), key=len, default="")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
