"""The operator's two servers: HTTPS for admission and the extender, plain HTTP for the probes.

Admission is answered by every replica. The extender is the leader's alone and asks for kube-scheduler's client
certificate; a follower answers 503 and closes the connection, so that the next call may reach the leader.
"""

import json
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from egpu.kube import Kube
from egpu_operator import certs
from egpu_operator.admission import decide, gather, review
from egpu_operator.admission.decide import Observed, Verdict
from egpu_operator.certs import Stored
from egpu_operator.health import Health
from egpu_operator.settings import Settings

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Gather = Callable[[Kube, Mapping[str, Any]], Awaitable[Observed]]
Decide = Callable[[Mapping[str, Any], Observed], Verdict]

LARGEST_BODY: Final = 32 * 1024**2
"""Bytes; a review holds an object twice, and kube-apiserver takes requests of 3 MiB."""
IDLE: Final = 600.0
"""Seconds an idle connection stays; longer than Go's clients keep theirs (90), so that they close first."""


class ExtenderApi(Protocol):
    """The scheduler extender v1 calls (k8s.io/kube-scheduler/extender/v1), JSON in, JSON out."""

    async def filter(self, args: dict[str, Any], /) -> dict[str, Any]:
        """The nodes that fit."""
        ...

    async def prioritize(self, args: dict[str, Any], /) -> list[dict[str, Any]]:
        """A score for each node."""
        ...

    async def bind(self, args: dict[str, Any], /) -> dict[str, Any]:
        """Books and binds."""
        ...


class Server:
    """Both servers of one replica.

    Attributes:
        extender: the leader's extender; None on a follower.
        health: the checks the probes ask.
    """

    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._tls: ssl.SSLContext | None = None
        self._runners: list[web.AppRunner] = []
        self.extender: ExtenderApi | None = None
        self.health = Health(ready={"webhook": self._not_serving})
        self.ports: dict[str, int] = {}

    async def start_probes(self) -> None:
        """Serves the probes."""
        app = web.Application()
        app.router.add_get("/healthz", self._probe(live=True))
        app.router.add_get("/livez", self._probe(live=True))
        app.router.add_get("/readyz", self._probe(live=False))
        self.ports["health"] = await self._listen(app, self._settings.health_port, None)

    async def use(self, stored: Stored) -> None:
        """Serves with these certificates from the next connection on; the first call opens the port."""
        if self._tls is not None:
            load_pairs(self._tls, stored)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        load_pairs(context, stored)
        self.ports["webhook"] = await self._listen(self._application(), self._settings.webhook_port, context)
        self._tls = context
        log.info("serving admission on port %s", self.ports["webhook"])

    async def stop(self) -> None:
        """Finishes what is being answered, then closes."""
        for runner in reversed(self._runners):
            await runner.cleanup()
        self._runners.clear()
        self._tls = None

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_post("/admit/pods", self._admit(gather.for_pod, decide.mutate_pod))
        app.router.add_post("/admit/pods/validate", self._admit(None, decide.validate_pod))
        app.router.add_post("/admit/claims", self._admit(gather.for_claim, decide.validate_claim))
        for verb in ("filter", "prioritize", "bind"):
            app.router.add_post(f"/extender/{verb}", self._extend(verb))
        return app

    async def _listen(self, app: web.Application, port: int, tls: ssl.SSLContext | None) -> int:
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE, shutdown_timeout=5)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self._settings.address, port, ssl_context=tls).start()
        return int(runner.addresses[0][1])

    def _admit(self, observe: Gather | None, judge: Decide) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            try:
                asked = review.read(await request.read())
            except review.ReviewError as error:
                return web.json_response({"error": str(error)}, status=400)
            try:
                observed = await observe(self._kube, asked) if observe else decide.NOTHING
                answer = review.answer(asked["uid"], judge(asked, observed))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                log.exception("review of %s %s", asked.get("namespace"), asked.get("name"))
                answer = review.broken(asked, error)
            return web.json_response(answer)

        return handler

    def _extend(self, verb: str) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            if client_name(request) != certs.CLIENT_NAME:
                text = f"the extender answers {certs.CLIENT_NAME} alone: call with the certificate of Secret "
                return web.Response(status=403, text=text + certs.CLIENT_SECRET)
            if self.extender is None:
                return _follower()
            try:
                args = json.loads(await request.read())
            except ValueError as error:
                return web.Response(status=400, text=f"extender arguments are no JSON: {error}")
            return web.json_response(await getattr(self.extender, verb)(args))

        return handler

    def _probe(self, *, live: bool) -> Handler:
        async def handler(_: web.Request) -> web.Response:
            faults = self.health.faults(live=live)
            return web.Response(status=503 if faults else 200, text="\n".join(faults) or "ok")

        return handler

    def _not_serving(self) -> str | None:
        return None if self._tls else "there are no certificates yet"


def load_pairs(context: ssl.SSLContext, stored: Stored) -> None:
    """Puts the serving pair and the trusted authorities into a TLS context; new connections use them at once.

    OpenSSL takes keys from files alone, so they stand in memory for the moment (``memfd_create``) and touch no disk. An
    authority once trusted stays so until the process ends; it is only ever dropped when it has ended.
    """
    if stored.server is None:
        raise ValueError("there is no serving certificate")
    file = os.memfd_create("serving", os.MFD_CLOEXEC)
    try:
        os.write(file, stored.server.cert + stored.server.key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    context.load_verify_locations(cadata=stored.bundle.decode())


def client_name(request: web.Request) -> str | None:
    """The common name in the caller's verified certificate, or None."""
    certificate = request.get_extra_info("peercert") or {}
    subject = dict(pair for group in certificate.get("subject", ()) for pair in group)
    return subject.get("commonName")


def _follower() -> web.Response:
    response = web.Response(status=503, text="this replica does not lead; another answers")
    response.force_close()
    return response
