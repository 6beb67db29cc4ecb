"""Kubelet as a device plug-in sees it: registry, device manager and its checkpoint; no pods, no runtime."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from egpu_agent.proto import deviceplugin_pb2 as pb
from egpu_agent.proto import deviceplugin_pb2_grpc as pb_grpc
from egpu_agent.proto import podresources_pb2 as resources_pb
from egpu_agent.proto import podresources_pb2_grpc as resources_grpc


class PodResources(resources_grpc.PodResourcesListerServicer):
    """The PodResources API over a table: (namespace, pod) to container to device ids, one entry a device."""

    def __init__(self, socket: Path) -> None:
        self.pods: dict[tuple[str, str], dict[str, tuple[str, Sequence[str]]]] = {}
        self._socket = socket
        self._server = grpc.aio.server()

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        resources_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def Get(  # noqa: N802 - the name on the wire
        self, request: resources_pb.GetPodResourcesRequest, context: Any
    ) -> resources_pb.GetPodResourcesResponse:
        held = self.pods.get((request.pod_namespace, request.pod_name))
        if held is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "pod not found")
            raise AssertionError
        answer = resources_pb.GetPodResourcesResponse()
        for name, (resource, ids) in held.items():
            container = answer.pod_resources.containers.add(name=name)
            for device in ids:
                container.devices.add(resource_name=resource, device_ids=[device])
        return answer


class KubeletDouble(pb_grpc.RegistrationServicer):
    """Serves ``kubelet.sock`` as kubelet 1.36 does: sockets cleaned at start, plug-ins forgotten by name."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "device-plugins"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pod_resources = PodResources(root / "pod-resources" / "kubelet.sock")
        self.entries: list[dict[str, Any]] = []
        self.devices: dict[str, list[str]] = {}
        self.registrations: list[str] = []
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._server: grpc.aio.Server | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        for name in list(self._channels):
            await self.disconnect(name)
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Register(self, request: pb.RegisterRequest, _: object) -> pb.Empty:  # noqa: N802 - the name on the wire
        name = request.resource_name
        assert request.version == "v1beta1"
        assert request.options.pre_start_required
        channel = grpc.aio.insecure_channel(f"unix:{self.folder / request.endpoint}")
        async with asyncio.timeout(10):
            await channel.channel_ready()
        options = await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        assert options.pre_start_required
        self._channels[name] = channel
        self._streams[name] = asyncio.create_task(self._watch(name, channel))
        self.registrations.append(name)
        return pb.Empty()

    async def disconnect(self, name: str) -> None:
        """Forgets a plug-in, as kubelet does when an old connection of that name ends."""
        stream = self._streams.pop(name, None)
        channel = self._channels.pop(name, None)
        self.devices.pop(name, None)
        if channel is not None:
            await channel.close()
        if stream is not None:
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await stream

    async def until(self, condition: Callable[[], bool], *, seconds: float = 15) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()

    async def registered(self, *names: str) -> None:
        await self.until(lambda: all(name in self.devices for name in names))

    async def allocate(self, pod_uid: str, container: str, resource: str, ids: Sequence[str]) -> str:
        """Admission of one container: Allocate, then the checkpoint. Returns the CDI name."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = await pb_grpc.DevicePluginStub(self._channels[resource]).Allocate(request)
        response = answer.container_responses[0]
        self.entries.append(
            {
                "PodUID": pod_uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": base64.b64encode(response.SerializeToString()).decode(),
            }
        )
        self.write_checkpoint()
        return response.cdi_devices[0].name

    async def pre_start(self, resource: str, ids: Sequence[str], *, timeout: float = 30) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        await pb_grpc.DevicePluginStub(self._channels[resource]).PreStartContainer(request, timeout=timeout)

    def forget_pod(self, pod_uid: str) -> None:
        self.entries = [entry for entry in self.entries if entry["PodUID"] != pod_uid]
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        data = {"PodDeviceEntries": self.entries or None, "RegisteredDevices": self.devices}
        path = self.folder / "kubelet_internal_checkpoint"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"Data": data, "Checksum": 1}))
        temporary.replace(path)

    async def _watch(self, name: str, channel: grpc.aio.Channel) -> None:
        try:
            async for answer in pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty()):
                self.devices[name] = [device.ID for device in answer.devices]
                self._changed.set()
        except grpc.aio.AioRpcError:
            pass
        finally:
            if self._channels.get(name) is channel:
                self.devices.pop(name, None)
            self._changed.set()
