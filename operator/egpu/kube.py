"""The only module that talks to the API server.

Objects are plain mappings as the server sends them; parsing them is :mod:`egpu.types`' work. Authentication, TLS and
connection pooling are the ``kubernetes`` package's; every answer other than success becomes one of :mod:`egpu.errors`.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as aio_client
from kubernetes.aio import config as aio_config

from egpu import errors
from egpu.resources import PODS, Resource

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"

WRITES: Final = ("POST", "PUT", "PATCH")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the API server is reached, for libraries with a client of their own."""

    server: str
    insecure: bool
    ca_file: str | None
    token: str | None
    certificate_file: str | None
    key_file: str | None


class Kube:
    """One connection pool to one API server.

    Use it as an asynchronous context manager. Methods raise :class:`egpu.errors.KubeError` and nothing else.
    """

    def __init__(
        self, configuration: aio_client.Configuration, *, timeout: float = 15.0, manager: str | None = None
    ) -> None:
        self._manager = manager
        self._api = aio_client.ApiClient(configuration)
        self._timeout = timeout

    @classmethod
    async def connect(cls, *, kubeconfig: str | None = None, timeout: float = 15.0, manager: str | None = None) -> Self:
        """From a kubeconfig file, or from inside a pod when none is given.

        Args:
            kubeconfig: the file.
            timeout: seconds for one request.
            manager: the field manager of all writes; one a program.
        """
        configuration = aio_client.Configuration()
        if kubeconfig:
            await aio_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        else:
            aio_config.load_incluster_config(client_configuration=configuration)
        return cls(configuration, timeout=timeout, manager=manager)

    async def __aenter__(self) -> Self:
        """The client itself; its connections open as they are needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes every connection."""
        await self._api.close()

    async def access(self) -> Access:
        """Address and credentials as they are now; a token inside a pod changes about every hour."""
        configuration = self._api.configuration
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], "", "GET", None)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return Access(
            server=configuration.host,
            insecure=not configuration.verify_ssl,
            ca_file=configuration.ssl_ca_cert,
            token=token if scheme.lower() == "bearer" else None,
            certificate_file=configuration.cert_file,
            key_file=configuration.key_file,
        )

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object:
        """One object, read from the quorum."""
        return await self._call("GET", resource.path(namespace=namespace, name=name))

    async def find(self, resource: Resource, name: str, *, namespace: str | None = None) -> Object | None:
        """One object, or None where there is none."""
        try:
            return await self.get(resource, name, namespace=namespace)
        except errors.NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        page: int = 500,
    ) -> tuple[list[Object], str]:
        """All objects that match, page by page, and the resourceVersion to watch from."""
        items: list[Object] = []
        query: dict[str, Any] = {"limit": page, "labelSelector": labels, "fieldSelector": fields}
        while True:
            answer = await self._call("GET", resource.path(namespace=namespace), query=query)
            items.extend(answer.get("items") or ())
            token = answer["metadata"].get("continue")
            if not token:
                return items, answer["metadata"]["resourceVersion"]
            query["continue"] = token

    async def create(self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None) -> Object:
        """Creates; :class:`egpu.errors.AlreadyExists` if the name is taken."""
        return await self._call("POST", resource.path(namespace=namespace), body=dict(body))

    async def replace(
        self, resource: Resource, body: Mapping[str, Any], *, name: str, namespace: str | None = None
    ) -> Object:
        """Replaces the object that has the body's resourceVersion, else :class:`egpu.errors.Conflict`."""
        return await self._call("PUT", resource.path(namespace=namespace, name=name), body=dict(body))

    async def patch_json(
        self,
        resource: Resource,
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """JSON patch (RFC 6902), all or nothing; a ``test`` that fails is :class:`egpu.errors.Conflict`."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._call("PATCH", path, body=[dict(op) for op in operations], content_type=JSON_PATCH)

    async def patch_merge(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """JSON merge patch (RFC 7386)."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        return await self._call("PATCH", path, body=dict(body), content_type=MERGE_PATCH)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Object:
        """Server-side apply under a field manager, taking over fields another manager holds."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        identity = {"apiVersion": resource.api_version, "kind": resource.kind}
        query = {"fieldManager": manager, "force": "true"}
        return await self._call("PATCH", path, body={**identity, **body}, query=query, content_type=APPLY_PATCH)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str | None = None
    ) -> None:
        """Asks for deletion; with ``uid`` only of that very object. An object already gone is success."""
        body = {"preconditions": {"uid": uid}} if uid else None
        try:
            await self._call("DELETE", resource.path(namespace=namespace, name=name), body=body)
        except errors.NotFound:
            return

    async def bind(self, *, namespace: str, pod: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Posts the Binding of a pod; its annotations arrive on the pod in the same write."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("POST", PODS.path(namespace=namespace, name=pod, subresource="binding"), body=body)

    async def watch(
        self,
        resource: Resource,
        *,
        version: str,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
        timeout: int = 290,
    ) -> AsyncGenerator[Object]:
        """Watch events ``{type, object}`` after ``version``, bookmarks included, until the server ends the stream.

        Raises:
            errors.Gone: the version is too old; list again.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": timeout,
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=timeout + 10)
        response = await self._send("GET", resource.path(namespace=namespace), query=query, timeout=limit)
        try:
            while line := await response.content.readline():
                event: Object = json.loads(line)
                if event["type"] == "ERROR":
                    raise _status_error(event["object"])
                yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.Retry(f"watch of {resource.plural} broke off: {error!r}") from error
        finally:
            response.close()

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> Object:
        response = await self._send(method, path, body=body, query=query, content_type=content_type)
        try:
            answer: Object = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.Retry(f"{method} {path}: {error!r}") from error
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        if self._manager and method in WRITES:
            pairs.setdefault("fieldManager", self._manager)
        headers = {"Accept": JSON, "Content-Type": content_type}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._api.configuration.host}{path}" + (f"?{urlencode(pairs)}" if pairs else "")
        limit = timeout or aiohttp.ClientTimeout(total=self._timeout)
        try:
            answer = await self._api.call_api(method, url, header_params=headers, body=body, _request_timeout=limit)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise errors.Retry(f"{method} {path}: no answer from the API server: {error!r}") from error
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 400:
            raise await _http_error(response, method, path)
        return response


async def _http_error(response: aiohttp.ClientResponse, method: str, path: str) -> errors.KubeError:
    text = await response.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {"message": text}
    after = response.headers.get("Retry-After", "")
    return errors.classify(
        response.status,
        status.get("reason") or "",
        f"{method} {path}: {status.get('message') or response.reason}",
        after=float(after) if after.isdigit() else None,
    )


def _status_error(status: Mapping[str, Any]) -> errors.KubeError:
    return errors.classify(int(status.get("code") or 500), status.get("reason") or "", status.get("message") or "")
