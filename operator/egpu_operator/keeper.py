"""Keeps the stored certificates good and known: to our own server, the webhook configurations and kube-scheduler."""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from egpu import errors, names
from egpu.kube import Kube, Object
from egpu.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from egpu_operator import certs
from egpu_operator.certs import Stored
from egpu_operator.settings import Settings

log = logging.getLogger(__name__)

DEPLOYMENTS: Final = Resource(group="apps", version="v1", plural="deployments", kind="Deployment", namespaced=True)
WEBHOOK_CONFIGURATIONS: Final = names.OPERATOR
"""Both webhook configurations bear the operator's name."""
LOOK: Final = 20.0
"""Seconds between two looks when all is well."""
HURRY: Final = 1.0
"""Seconds to the next look after a fault or a lost race."""


class Keeper:
    """Looks at the certificates again and again on every replica; writes are compare-and-swap, so many may try.

    Args:
        use: called with the pairs whenever they changed; serves them from then on.

    Attributes:
        fault: what keeps the certificates from being good and known everywhere; None when all is well.
    """

    def __init__(self, kube: Kube, settings: Settings, *, use: Callable[[Stored], Awaitable[None]]) -> None:
        self._kube = kube
        self._settings = settings
        self._use = use
        self._used: Stored | None = None
        self.fault: str | None = "the certificates are being looked at"

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:  # noqa: ASYNC110 - what is waited for is time itself
            await asyncio.sleep(LOOK if await self.look() else HURRY)

    async def look(self) -> bool:
        """One pass; False if it is to be repeated soon."""
        try:
            stored = await self._stored()
            await self._serve(stored)
            self.fault = await self._hand_out(stored)
        except errors.Conflict as error:
            log.info("another replica was first: %s", error)
        except errors.KubeError as error:
            log.warning("certificates not looked after: %s", error)
        else:
            return self.fault is None
        return False

    async def _stored(self) -> Stored:
        """The pairs after what was due has been done and stored."""
        secret = await self._kube.find(SECRETS, certs.SECRET, namespace=self._settings.namespace)
        now, dns = certs.utc_now(), certs.dns_names(self._settings.namespace)
        before, limits = certs.parse(secret), self._settings.certificates
        plan = certs.decide(now, before, dns=dns, settings=limits)
        if plan.empty:
            return before
        log.info("certificates: %s", plan)
        after = await asyncio.to_thread(certs.carry_out, plan, before, now=now, dns=dns, settings=limits)
        await self._write(secret, certs.secret_of(after))
        return after

    async def _serve(self, stored: Stored) -> None:
        if stored != self._used:
            await self._use(stored)
            self._used = stored

    async def _hand_out(self, stored: Stored) -> str | None:
        """Everybody else's copy, written where it differs; what is still missing."""
        await self._hand_out_client(certs.client_secret_of(stored))
        faults = [await self._trust(resource, stored.bundle) for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)]
        return next(filter(None, faults), None)

    async def _write(self, old: Object | None, wanted: dict[str, Any]) -> None:
        namespace, name = self._settings.namespace, wanted["metadata"]["name"]
        if old is None:
            await self._kube.create(SECRETS, wanted, namespace=namespace)
            return
        kept = {"name": name, "resourceVersion": old["metadata"]["resourceVersion"]}
        body = {**wanted, "type": old.get("type", "Opaque"), "metadata": {**wanted["metadata"], **kept}}
        await self._kube.replace(SECRETS, body, name=name, namespace=namespace)

    async def _trust(self, resource: Resource, bundle: bytes) -> str | None:
        configuration = await self._kube.find(resource, WEBHOOK_CONFIGURATIONS)
        if configuration is None:
            return f"there is no {resource.kind} {WEBHOOK_CONFIGURATIONS}; apply manifests/50-webhooks.yaml"
        operations = trust_patch(configuration, base64.b64encode(bundle).decode())
        if operations:
            await self._kube.patch_json(resource, WEBHOOK_CONFIGURATIONS, operations)
        return None

    async def _hand_out_client(self, wanted: dict[str, Any]) -> None:
        """kube-scheduler reads its files once, at its start, so new ones are marked, and the mark restarts it."""
        namespace = self._settings.namespace
        client = await self._kube.find(SECRETS, certs.CLIENT_SECRET, namespace=namespace)
        scheduler = await self._kube.find(DEPLOYMENTS, names.SCHEDULER, namespace=namespace)
        if client is None or client.get("data") != wanted["data"]:
            known = client is not None or (scheduler and (scheduler.get("status") or {}).get("readyReplicas"))
            wanted["metadata"]["annotations"] = {certs.MARK: certs.mark(wanted["data"])} if known else {}
            await self._write(client, wanted)
            client = wanted
        if scheduler and (mark := _marks(client).get(certs.MARK)):
            await self._mark(scheduler, mark)

    async def _mark(self, deployment: Object, mark: str) -> None:
        if _marks(deployment["spec"]["template"]).get(certs.MARK) == mark:
            return
        log.info("kube-scheduler is restarted for its new client certificate")
        body = {"spec": {"template": {"metadata": {"annotations": {certs.MARK: mark}}}}}
        await self._kube.patch_merge(DEPLOYMENTS, names.SCHEDULER, body, namespace=self._settings.namespace)


def _marks(thing: Object) -> dict[str, str]:
    return (thing.get("metadata") or {}).get("annotations") or {}


def trust_patch(configuration: Object, bundle: str) -> list[dict[str, Any]]:
    """JSON patch that gives every webhook the bundle; ``test`` on its name guards against a list that moved."""
    operations: list[dict[str, Any]] = []
    for index, webhook in enumerate(configuration.get("webhooks") or ()):
        if webhook["clientConfig"].get("caBundle") != bundle:
            place = f"/webhooks/{index}"
            operations.append({"op": "test", "path": f"{place}/name", "value": webhook["name"]})
            operations.append({"op": "add", "path": f"{place}/clientConfig/caBundle", "value": bundle})
    return operations
