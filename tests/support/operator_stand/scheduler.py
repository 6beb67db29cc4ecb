"""An unmodified kube-scheduler that asks the operator's extender over plain HTTP; mutual TLS has tests of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from egpu import names
from localcluster import binaries


def configuration(*, kubeconfig: Path, port: int) -> dict[str, object]:
    """As in manifests/, but for transport and leader election."""
    extender = {
        "urlPrefix": f"http://127.0.0.1:{port}/extender",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 100,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "15s",
        "managedResources": [
            {"name": names.TICKET, "ignoredByScheduler": False},
            {"name": names.INIT_TICKET, "ignoredByScheduler": False},
        ],
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "percentageOfNodesToScore": 100,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": names.SCHEDULER}],
        "extenders": [extender],
    }


class Extenders:
    """Whichever extender serves at the moment; none answers 503, as a follower does."""

    def __init__(self) -> None:
        self.now: object | None = None
        self.calls: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        self.calls.append(verb)
        if self.now is None:
            return web.Response(status=503)
        return web.json_response(await getattr(self.now, verb)(await request.json()))


@contextlib.asynccontextmanager
async def scheduler(*, kubeconfig: Path, folder: Path, extenders: Extenders) -> AsyncIterator[None]:
    """kube-scheduler at work, asking ``extenders``."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/extender/{verb}", extenders.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    file = folder / "scheduler.json"
    file.write_text(json.dumps(configuration(kubeconfig=kubeconfig, port=port)))
    with (folder / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(binaries.folder() / "kube-scheduler"), f"--config={file}", "--secure-port=0", "--v=5", stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()
            await runner.cleanup()
