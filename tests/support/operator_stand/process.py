"""An operator as a process of its own that can be made to die: ``python -m operator_stand.process``.

It says ``ready`` once its caches are filled, and ``bound`` or what went wrong for each ``--bind``.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from egpu.kube import Kube
from egpu_operator.app import Operator
from egpu_operator.provision import Steps
from operator_stand.stand import Station

HERE = Path(__file__).resolve().parents[1]


def die_at(step: str | None) -> Steps:
    """Ends the process as ``kill -9`` does, right after the write of that name."""

    def reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


async def main(options: argparse.Namespace) -> None:
    async with await Kube.connect(kubeconfig=options.kubeconfig) as kube:
        operator = Operator(kube, Station(identity=options.identity), steps=die_at(options.die_at))
        await operator.start()
        work = asyncio.create_task(operator.run())
        print("ready", flush=True)  # noqa: T201 - read by the test
        if options.bind:
            namespace, name, uid, node = options.bind.split("/")
            args = {"PodNamespace": namespace, "PodName": name, "PodUID": uid, "Node": node}
            print((await operator.extender.bind(args))["Error"] or "bound", flush=True)  # noqa: T201 - as above
        await work


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--identity", default="process")
    parser.add_argument("--die-at")
    parser.add_argument("--bind", help="namespace/name/uid/node")
    return parser.parse_args()


@contextlib.asynccontextmanager
async def started(*, kubeconfig: Path, **arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process, ready; killed at the end if it still lives."""
    extra = [f"--{key.replace('_', '-')}={value}" for key, value in arguments.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "operator_stand.process", f"--kubeconfig={kubeconfig}", *extra,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(options()))
