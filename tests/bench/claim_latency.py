"""Claim (Immediate) created → Bound, one after the other, as a client sees it: ``python tests/bench/claim_latency.py``.

Runs on a control plane of its own, with the operator in a process of its own. Prints one line of JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("cluster", "support")]

from egpu.kube import Kube  # noqa: E402 - the line above makes the next ones found
from egpu.resources import CLAIMS  # noqa: E402
from localcluster import LocalCluster  # noqa: E402
from operator_stand import claim, gpu_class  # noqa: E402
from operator_stand.objects import card  # noqa: E402
from operator_stand.process import started  # noqa: E402
from operator_stand.stand import Stand, stand_on  # noqa: E402


class Watcher:
    """When each claim was seen Bound."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self.seen: dict[str, asyncio.Future[float]] = {}

    async def run(self) -> None:
        _, version = await self._kube.list(CLAIMS, namespace=self._namespace)
        async with contextlib.aclosing(self._kube.watch(CLAIMS, version=version, namespace=self._namespace)) as events:
            async for event in events:
                raw = event["object"]
                future = self.seen.get(raw["metadata"].get("name", ""))
                if future and not future.done() and raw.get("status", {}).get("phase") == "Bound":
                    future.set_result(time.perf_counter())


async def measure(stand: Stand, *, count: int) -> list[float]:
    """Milliseconds for each of so many claims."""
    await stand.node("a", *(card(f"GPU-{i}", memory=80 << 30) for i in range(8)))
    await stand.create(gpu_class(stand.name))
    watcher = Watcher(stand.kube, stand.namespace)
    task = asyncio.create_task(watcher.run())
    took = []
    for number in range(count):
        name = f"c{number}"
        watcher.seen[name] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        await stand.create(claim(name, gpu_class=stand.name, core=1, memory="64Mi"))
        async with asyncio.timeout(30):
            took.append((await watcher.seen[name] - begun) * 1000)
    task.cancel()
    return took


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", nodes=0) as cluster:
        cluster.kubectl("apply", "-f", str(ROOT / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        kubeconfig = cluster.kubeconfig
        async with stand_on(kubeconfig, "bench") as stand, started(kubeconfig=kubeconfig):
            took = await measure(stand, count=count)
    cuts = statistics.quantiles(took, n=100)
    figures = {
        "n": count,
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "max_ms": round(max(took), 1),
        "load": os.getloadavg()[0],
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=220)
    asyncio.run(main(parser.parse_args().count))
