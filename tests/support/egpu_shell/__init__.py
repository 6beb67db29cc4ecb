"""The operator's outer shell in a test's own process: the real server and the real keeper of certificates."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Self

import yaml

from egpu.kube import Kube
from egpu_operator.keeper import Keeper
from egpu_operator.server import Server
from egpu_operator.settings import Settings
from egpu_testing.stack import ROOT
from egpu_testing.waiting import until
from localcluster import LocalCluster


class Shell:
    """A server on a loopback port, in a thread of its own so that a test may run kubectl meanwhile."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._settings = Settings(
            kubeconfig=str(cluster.kubeconfig), identity="test", address="127.0.0.1", webhook_port=0, health_port=0
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.call(self._start())
        until("the webhook's port is open", lambda: "webhook" in self.server.ports, timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._stop())
        until("every connection is closed", lambda: len(self._loop._selector.get_map()) == 1, timeout=35)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def ports(self) -> dict[str, int]:
        """The ports listened on: ``webhook`` and ``health``."""
        return self.server.ports

    def trusted(self) -> None:
        """Waits until the certificates are known everywhere."""
        until("the certificates are known", lambda: self.keeper.fault is None, timeout=20)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine in the shell's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _start(self) -> None:
        self._kube = await Kube.connect(kubeconfig=self._settings.kubeconfig)
        self.server = Server(self._kube, self._settings)
        await self.server.start_probes()
        self.keeper = Keeper(self._kube, self._settings, use=self.server.use)
        self.server.health.ready["certificates"] = lambda: self.keeper.fault
        self._task = asyncio.create_task(self.keeper.run())

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.server.stop()
        await self._kube.__aexit__()


def configurations(port: int) -> Iterator[dict[str, Any]]:
    """The webhook configurations of manifests/, the Service's place taken by this machine's loopback address."""
    for body in documents("50-webhooks.yaml"):
        for webhook in body["webhooks"]:
            service = webhook["clientConfig"].pop("service")
            webhook["clientConfig"]["url"] = f"https://localhost:{port}{service['path']}"
        yield body


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of one file of manifests/."""
    return list(yaml.safe_load_all((ROOT / "manifests" / name).read_text()))
