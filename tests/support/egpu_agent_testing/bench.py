"""A node for one agent: folders, a kubelet double, cards from a file, and the agent as a process."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from egpu import errors, names, resources
from egpu.kube import Kube, Object
from egpu_agent import checkpoint
from egpu_agent_testing.kubelet import KubeletDouble
from egpu_vgpu import limits

CARD = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
OTHER_CARD = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
SUPPORT = Path(__file__).resolve().parents[1]


def card(uuid_: str = CARD, index: int = 0) -> dict[str, Any]:
    return {"uuid": uuid_, "index": index, "model": "Tesla T4", "memory": "15Gi"}


class Bench:
    """Everything an agent meets, without a runtime."""

    def __init__(self, root: Path, kube: Kube, kubeconfig: Path) -> None:
        self.root = root
        self.kube = kube
        self.node = f"node-{uuid.uuid4().hex[:8]}"
        self.kubelet = KubeletDouble(root / "kubelet")
        self.cdi = root / "cdi"
        self.state = root / "state"
        self.proc = root / "proc"
        self._kubeconfig = kubeconfig
        self._process: asyncio.subprocess.Process | None = None
        self._tickets = 0
        self.cdi.mkdir(parents=True)
        self.proc.mkdir()
        (root / "libvgpu.so").write_bytes(b"library")
        self.set_cards(cards=[card(), card(OTHER_CARD, 1)])

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, kubeconfig: Path) -> AsyncIterator[Self]:
        """A fresh node, gone afterwards. Its folder has a short name: a socket's path has 107 characters at most."""
        async with await Kube.connect(kubeconfig=str(kubeconfig)) as kube:
            with tempfile.TemporaryDirectory(prefix="egpu-") as folder:
                bench = cls(Path(folder), kube, kubeconfig)
                try:
                    yield bench
                finally:
                    await bench.close()
                    await bench.forget()

    async def forget(self) -> None:
        """Removes what the node has at the API server."""
        items, _ = await self.kube.list(resources.SLICES, fields=f"spec.nodeName={self.node}")
        for item in items:
            name = item["metadata"]["name"]
            await self.kube.delete(resources.SLICES, name)
            with contextlib.suppress(errors.NotFound):
                await self.kube.patch_merge(resources.SLICES, name, {"metadata": {"finalizers": None}})
        await self.kube.delete(resources.NODE_CARDS, self.node)

    def set_cards(self, **raw: Any) -> None:
        path = self.root / "cards.json"
        path.with_suffix(".tmp").write_text(json.dumps(raw))
        path.with_suffix(".tmp").replace(path)

    async def start_agent(
        self,
        *,
        crash_at: str = "",
        kubeconfig: Path | None = None,
        proc: Path | None = None,
        driver: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        """Starts it; with ``driver``, a driver's environment, it reads NVML instead of the file of cards."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
            "CRASH_AT": crash_at,
            "CARDS": "" if driver is not None else str(self.root / "cards.json"),
            "LIBRARY": str(self.root / "libvgpu.so"),
            **(driver or {}),
        }
        options = {
            "node": self.node,
            "kubeconfig": kubeconfig or self._kubeconfig,
            "kubelet-dir": self.root / "kubelet",
            "cdi-dir": self.cdi,
            "state-dir": self.state,
            "host-root": self.root / "host",
            "proc": proc or self.proc,
            "health-port": 0,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        with (self.root / "agent.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "egpu_agent_testing.program",
                *(f"--{name}={value}" for name, value in options.items()),
                env=environment,
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        await self.kubelet.registered(names.TICKET, names.INIT_TICKET)

    async def stop_agent(self, *, kill: bool = False) -> int:
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.kill() if kill else process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(20):
            return await self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def gone_soon(self) -> bool:
        """Whether the process has ended, given a moment."""
        assert self._process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._process.wait()
        return not self.running

    def log(self) -> str:
        return (self.root / "agent.log").read_text()

    async def close(self) -> None:
        if self.running:
            await self.stop_agent(kill=True)
        await self.kubelet.stop()

    async def create_slice(
        self,
        name: str,
        *,
        pod: str | None = None,
        containers: Sequence[str] = ("main",),
        memory: str = "4Gi",
        cards: Sequence[str] = (CARD,),
    ) -> Object:
        spec: dict[str, Any] = {
            "nodeName": self.node,
            "cards": [{"uuid": uuid_, "core": 25, "memory": memory} for uuid_ in cards],
        }
        if pod:
            spec["consumer"] = {
                "podUID": pod,
                "podName": f"pod-{pod[:8]}",
                "podNamespace": "default",
                "containers": list(containers),
            }
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticGPU",
            "metadata": {"name": f"{self.node}-{name}", "finalizers": [names.FINALIZER_AGENT]},
            "spec": spec,
        }
        return await self.kube.create(resources.SLICES, body)

    async def slice(self, name: str) -> Object | None:
        return await self.kube.find(resources.SLICES, f"{self.node}-{name}")

    async def patch(self, name: str, spec: Mapping[str, Any]) -> None:
        await self.kube.patch_merge(resources.SLICES, f"{self.node}-{name}", {"spec": spec})

    async def until(self, what: str, probe: Callable[[], Any], *, seconds: float = 20) -> Any:
        """The first true answer of a probe, awaited if it is a coroutine."""
        last: Any = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    last = probe()
                    if asyncio.iscoroutine(last):
                        last = await last
                    if last:
                        return last
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not so within {seconds} s: {what} (last: {last!r})\n{self.log()}") from None

    def next_ticket(self, resource: str = names.TICKET) -> list[str]:
        self._tickets += 1
        return [f"{resource.rpartition('/')[2]}-{self._tickets}"]

    def tickets(self) -> dict[str, checkpoint.Ticket]:
        path = self.state / "checkpoint.json"
        return checkpoint.decode(path.read_bytes()) if path.exists() else {}

    def spec(self, cdi_name: str) -> dict[str, Any] | None:
        path = self.cdi / f"elasticgpu.io-slice-{cdi_name.partition('=')[2]}.json"
        raw: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return raw

    def specs(self) -> set[str]:
        return {path.name for path in self.cdi.iterdir()}

    def slice_folders(self) -> set[str]:
        folder = self.state / "slices"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def limits_of(self, cdi_name: str) -> limits.LimitsPage:
        """The limits page that a container with this device would map."""
        spec = self.spec(cdi_name)
        assert spec is not None
        mounts = spec["devices"][0]["containerEdits"]["mounts"]
        (path,) = (entry["hostPath"] for entry in mounts if entry["containerPath"] == names.CONTAINER_LIMITS)
        return limits.read(Path(path))

    def run_process(self, pid: int, pod: str, name: str = "python3") -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/c0ffee\n")

    def end_process(self, pid: int) -> None:
        folder = self.proc / str(pid)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def pod_uid() -> str:
    return str(uuid.uuid4())


def condition(found: Object | None, kind: str = "Ready") -> dict[str, Any]:
    listed = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((entry for entry in listed if entry["type"] == kind), {})
