"""The agent as a program that ends by SIGKILL at a named point: ``python -m egpu_agent_testing.program``."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from egpu.kube import Kube
from egpu_agent.agent import Agent
from egpu_agent.isolation.libvgpu import Libvgpu
from egpu_agent.settings import Settings
from egpu_agent_testing.provider import FileProvider


def _steps(point: str) -> None:
    if point == os.environ.get("CRASH_AT"):
        os.kill(os.getpid(), signal.SIGKILL)


async def _run() -> None:
    settings = Settings.from_arguments(sys.argv[1:])
    library = Path(os.environ["LIBRARY"])
    isolation = Libvgpu(slices=settings.slices_dir, lib=settings.library_dir, library=lambda: library, steps=_steps)
    cards = os.environ["CARDS"]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await Kube.connect(kubeconfig=settings.kubeconfig) as kube:
        agent = Agent(
            settings,
            kube,
            steps=_steps,
            providers=[FileProvider(Path(cards))] if cards else None,
            isolations={isolation.name: isolation},
        )
        await agent.run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_run())
