"""What kubelet knows: its device manager's checkpoint, and the PodResources API as a second opinion.

The checkpoint is the only place that names pod UID and container of a device id, ordinary init containers included. Its
form is ``pkg/kubelet/cm/devicemanager/checkpoint`` of Kubernetes 1.20 and later. Kubelet writes it, by rename, after
Allocate and before it goes on with the container.
"""

import base64
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from egpu import names
from egpu_agent.proto import deviceplugin_pb2, podresources_pb2, podresources_pb2_grpc

OWN_RESOURCES = frozenset((names.TICKET, names.INIT_TICKET))


class KubeletError(RuntimeError):
    """Kubelet's state cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Device ids that kubelet gave to a container, and the nonce of the answer it keeps (None: an answer not ours)."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    nonce: str | None


def parse_checkpoint(content: bytes) -> tuple[Entry, ...]:
    """The entries about our own resources.

    Raises:
        KubeletError: not the form that is known.
    """
    try:
        raw = json.loads(content)["Data"]["PodDeviceEntries"] or ()
        return tuple(_entry(entry) for entry in raw if entry["ResourceName"] in OWN_RESOURCES)
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        raise KubeletError(f"kubelet's device manager checkpoint has an unknown form: {error!r}") from error


def read_checkpoint(path: Path) -> tuple[Entry, ...]:
    """As :func:`parse_checkpoint`; a node without one has given nothing to anybody."""
    try:
        return parse_checkpoint(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KubeletError(f"kubelet's device manager checkpoint cannot be read: {error}") from error


def holders(entries: Iterable[Entry], *, resource: str, ids: Collection[str]) -> tuple[Entry, ...]:
    """The containers that hold exactly these ids: one, or several init containers of one pod in turn."""
    wanted = frozenset(ids)
    return tuple(entry for entry in entries if entry.resource == resource and entry.ids == wanted)


def nonce_of(cdi_name: str) -> str | None:
    """The nonce in a CDI device name of ours."""
    kind, _, nonce = cdi_name.partition("=")
    return nonce if kind == names.CDI_KIND and nonce else None


def _entry(raw: dict[str, Any]) -> Entry:
    response = deviceplugin_pb2.ContainerAllocateResponse.FromString(base64.b64decode(raw["AllocResp"] or ""))
    nonces = [nonce for device in response.cdi_devices if (nonce := nonce_of(device.name))]
    by_numa = raw["DeviceIDs"] or {}
    groups = by_numa.values() if isinstance(by_numa, dict) else (by_numa,)
    return Entry(
        pod_uid=raw["PodUID"],
        container=raw["ContainerName"],
        resource=raw["ResourceName"],
        ids=frozenset(device for group in groups for device in group),
        nonce=nonces[0] if nonces else None,
    )


async def pod_ids(
    socket: Path, *, namespace: str, pod: str, container: str, resource: str, timeout: float = 1.0
) -> frozenset[str] | None:
    """The ids that PodResources names for a container of a pod; None where it says nothing about it.

    It leaves out ordinary init containers, limits how often it is asked, and lists one entry for each device.
    """
    request = podresources_pb2.GetPodResourcesRequest(pod_name=pod, pod_namespace=namespace)
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.Get(request, timeout=timeout)
    except grpc.aio.AioRpcError:
        return None
    for entry in answer.pod_resources.containers:
        if entry.name == container:
            devices = [device for device in entry.devices if device.resource_name == resource]
            return frozenset(name for device in devices for name in device.device_ids)
    return None
