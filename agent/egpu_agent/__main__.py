"""``egpu-agent``: the agent of one node."""

import asyncio
import logging
import signal
import sys

from egpu import names
from egpu.kube import Kube
from egpu_agent.agent import Agent
from egpu_agent.settings import Settings

logger = logging.getLogger(__name__)


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(Settings.from_arguments()))
    return 0


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await Kube.connect(kubeconfig=settings.kubeconfig, manager=names.MANAGER_AGENT) as kube:
        await Agent(settings, kube).run(stop)
    logger.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
