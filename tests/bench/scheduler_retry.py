"""Whether a changed annotation makes kube-scheduler ask again: ``python tests/bench/scheduler_retry.py``."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("cluster", "support")]

from egpu import names  # noqa: E402 - the line above makes the next ones found
from egpu.resources import PODS  # noqa: E402
from localcluster import LocalCluster  # noqa: E402
from operator_stand import pod  # noqa: E402
from operator_stand.scheduler import Extenders, scheduler  # noqa: E402
from operator_stand.stand import Stand, stand_on  # noqa: E402

QUIET = 40.0
ROUNDS = 5


class Refuser:
    """An extender that fits no node and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.changed = asyncio.Event()

    async def filter(self, args: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        self.changed.set()
        failed = dict.fromkeys(args["NodeNames"], "refused")
        return {"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": failed, "Error": ""}


async def watch_it(stand: Stand, refuser: Refuser) -> None:
    await stand.node("a")
    await stand.create(pod("p", {"main": "x"}))
    await refuser.changed.wait()
    await asyncio.sleep(10)
    before = refuser.asked
    await asyncio.sleep(QUIET)
    sys.stdout.write(f"asked in {QUIET:.0f} s without a change: {refuser.asked - before}\n")
    for number in range(ROUNDS):
        refuser.changed.clear()
        begun = time.perf_counter()
        body = {"metadata": {"annotations": {names.ANNOTATION_RETRY: str(number)}}}
        await stand.kube.patch_merge(PODS, "p", body, namespace=stand.namespace)
        async with asyncio.timeout(60):
            await refuser.changed.wait()
        sys.stdout.write(f"asked {1000 * (time.perf_counter() - begun):.0f} ms after a changed annotation\n")
        await asyncio.sleep(4)


async def main() -> None:
    extenders, refuser = Extenders(), Refuser()
    extenders.now = refuser
    with tempfile.TemporaryDirectory() as folder, LocalCluster(Path(folder) / "cluster", nodes=0) as cluster:
        cluster.kubectl("apply", "-f", str(ROOT / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        async with (
            stand_on(cluster.kubeconfig, "retry") as stand,
            scheduler(kubeconfig=cluster.kubeconfig, folder=Path(folder), extenders=extenders),
        ):
            await watch_it(stand, refuser)


if __name__ == "__main__":
    asyncio.run(main())
