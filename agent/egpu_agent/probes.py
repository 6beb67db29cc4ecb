"""/healthz and /readyz for kubelet's probes; nothing else is told."""

from collections.abc import Callable

from aiohttp import web


class Probes:
    """Serves until closed. ``ready`` returns what is missing, or ""."""

    def __init__(self, *, port: int, ready: Callable[[], str]) -> None:
        self._port = port
        self._ready = ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Opens the port on every address: kubelet asks the pod's own."""
        app = web.Application()
        app.add_routes([web.get("/healthz", self._health), web.get("/readyz", self._readiness)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, None, self._port).start()

    async def close(self) -> None:
        """Closes the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.Response:
        missing = self._ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=503 if missing else 200)
