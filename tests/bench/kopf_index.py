"""Seconds kopf takes to hand over claims, without and with an index: ``python tests/bench/kopf_index.py``."""

import asyncio
import logging
import sys
import tempfile
import threading
import time
from pathlib import Path

import kopf

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("cluster", "support")]

from egpu import names  # noqa: E402 - the line above makes the next ones found
from egpu.kube import Access  # noqa: E402
from egpu.resources import CLAIMS  # noqa: E402
from egpu_operator.watch import quiet_settings  # noqa: E402
from localcluster import LocalCluster  # noqa: E402
from operator_stand import claim  # noqa: E402
from operator_stand.stand import Stand, stand_on  # noqa: E402

SIZES = (500, 1000, 2000)
LIMIT = 120.0


def hand_over(access: Access, count: int, *, index: bool) -> float | None:
    """Seconds from start until ``on.event`` has had every object; None if that took more than two minutes."""
    registry, stop, seen = kopf.OperatorRegistry(), threading.Event(), set()
    begun, took = time.perf_counter(), []

    async def login(**_: object) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=access.server,
            ca_path=access.ca_file,
            insecure=access.insecure,
            scheme="Bearer" if access.token else None,
            token=access.token,
            certificate_path=access.certificate_file,
            private_key_path=access.key_file,
        )

    async def event(uid: str, **_: object) -> None:
        seen.add(uid)
        if len(seen) == count:
            took.append(time.perf_counter() - begun)
            stop.set()

    async def by_name(name: str, **_: object) -> dict[str, bool]:
        return {name: True}

    kopf.on.login(registry=registry)(login)
    kopf.on.event(names.GROUP, names.VERSION, CLAIMS.plural, registry=registry)(event)
    if index:
        kopf.index(names.GROUP, names.VERSION, CLAIMS.plural, registry=registry)(by_name)

    async def operate() -> None:
        asyncio.get_running_loop().call_later(LIMIT, stop.set)
        await kopf.operator(
            registry=registry, settings=quiet_settings(), standalone=True, clusterwide=True, stop_flag=stop
        )

    asyncio.run(operate())
    return took[0] if took else None


async def grow(stand: Stand, count: int) -> None:
    listed, _ = await stand.kube.list(CLAIMS, namespace=stand.namespace)
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with gate:
            await stand.create(claim(f"c{number}"))

    await asyncio.gather(*(one(number) for number in range(len(listed), count)))


async def main() -> None:
    logging.getLogger("kopf").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", nodes=0) as cluster:
        cluster.kubectl("apply", "-f", str(ROOT / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        async with stand_on(cluster.kubeconfig, "index") as stand:
            for size in SIZES:
                await grow(stand, size)
                access = await stand.kube.access()
                for index in (False, True):
                    took = await asyncio.to_thread(hand_over, access, size, index=index)
                    sys.stdout.write(f"{size} claims, index {index}: {took and round(took, 1)} s\n")


if __name__ == "__main__":
    asyncio.run(main())
