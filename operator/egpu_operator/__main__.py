"""The operator's process: ``egpu-operator`` or ``python -m egpu_operator``."""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Final

from egpu import names
from egpu.kube import Kube
from egpu_operator import logs, settings
from egpu_operator.app import Operator
from egpu_operator.keeper import Keeper
from egpu_operator.leader import Leadership
from egpu_operator.server import Server
from egpu_operator.settings import Settings, SettingsError

log = logging.getLogger("egpu_operator")
LONGEST_PAUSE: Final = 60.0
"""Seconds between two terms that fail one after another; a term that lasted longer was a good one."""


async def serve(options: Settings) -> None:
    """Serves admission on every replica and works while leading; returns on SIGTERM or SIGINT, the Lease released."""
    async with await Kube.connect(kubeconfig=options.kubeconfig, manager=names.MANAGER_OPERATOR) as kube:
        server = Server(kube, options)
        await server.start_probes()
        keeper = Keeper(kube, options, use=server.use)
        server.health.ready["certificates"] = lambda: keeper.fault
        tasks = [asyncio.create_task(keeper.run()), asyncio.create_task(_lead(kube, options, server))]
        try:
            await _first_end(tasks)
        finally:
            await _stop(tasks)
            await server.stop()


async def _lead(kube: Kube, options: Settings, server: Server) -> None:
    """One term after another, each with an operator of its own; admission is served through every fault."""
    leadership = Leadership(kube, options)
    pause = options.leader.retry
    while True:
        started = time.monotonic()
        try:
            await leadership.hold(lambda: _term(kube, options, server))
        except Exception:
            log.exception("this term of leadership has failed; another begins in %.1f s", pause)
            await asyncio.sleep(pause)
        healthy = time.monotonic() - started > LONGEST_PAUSE
        pause = options.leader.retry if healthy else min(2 * pause, LONGEST_PAUSE)


async def _term(kube: Kube, options: Settings, server: Server) -> None:
    operator = Operator(kube, options)
    try:
        await operator.start()
        server.extender = operator.extender
        await operator.run()
    finally:
        server.extender = None
        await operator.stop()


async def _first_end(tasks: list[asyncio.Task[None]]) -> None:
    """Waits for a signal to stop, or for a task that should never end; raises what ended it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    waiting = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in done - {waiting}:
        task.result()
    log.info("stopping")


async def _stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


def main() -> None:
    """Reads the settings and serves until told to stop."""
    parser = argparse.ArgumentParser(prog="egpu-operator", description="The operator of Elastic GPU.")
    parser.add_argument("--config", type=Path, help=f"settings file (default {settings.FILE}, if it is there)")
    try:
        options = settings.load(parser.parse_args().config)
    except SettingsError as error:
        sys.exit(f"egpu-operator: {error}")
    logs.set_up(options)
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
