"""Tickets offered to kubelet: two device plug-ins, registered again whenever kubelet or the connection is a new one.

Kubelet, when it starts, removes every socket of its device-plugins folder and knows no plug-in any more. And it forgets
a plug-in by name: an old connection that ends late takes a newer registration with it. So a session ends, and the next
begins, when kubelet's socket is another one, when ours is gone, or when ListAndWatch ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import grpc
import grpc.aio

from egpu import names
from egpu_agent import files
from egpu_agent.allocate import Refused
from egpu_agent.proto import deviceplugin_pb2 as pb
from egpu_agent.proto import deviceplugin_pb2_grpc as pb_grpc

logger = logging.getLogger(__name__)

API: Final = "v1beta1"
HEALTHY: Final = "Healthy"
POLL: Final = 0.25
READY: Final = 2.0
CONNECT: Final = 10.0
PAUSE: Final = 0.5
GRACE: Final = 5.0
EAGER: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)
"""gRPC would wait up to two minutes before it tries a socket again, and remember that for the next channel."""


class Answers(Protocol):
    """What a plug-in asks of the agent."""

    async def allocate(self, resource: str, ids: Sequence[str]) -> str:
        """The CDI device name for some ids."""

    async def start(self, resource: str, ids: Sequence[str]) -> None:
        """Makes the device of a container real, or raises :class:`Refused`."""


class Plugin(pb_grpc.DevicePluginServicer):
    """One ticket resource.

    Ids are stable over restarts and always healthy: they are how many containers may be here, not cards.
    """

    def __init__(self, *, resource: str, folder: Path, answers: Answers, tickets: int = names.TICKETS_PER_NODE) -> None:
        self.resource = resource
        self._short = resource.rpartition("/")[2]
        self._folder = folder
        self._socket = folder / f"egpu-{self._short}.sock"
        self._kubelet = folder / "kubelet.sock"
        self._answers = answers
        self._devices = [pb.Device(ID=f"{self._short}-{number}", health=HEALTHY) for number in range(tickets)]
        self._streams = 0
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()

    @property
    def registered(self) -> bool:
        """Whether kubelet holds a ListAndWatch."""
        return self._streams > 0

    async def run(self, stop: asyncio.Event) -> None:
        """Sessions until told to stop; never raises for what kubelet does."""
        while not stop.is_set():
            try:
                await self._session(stop)
            except (grpc.aio.AioRpcError, OSError, TimeoutError, RuntimeError) as error:
                logger.warning("%s: no connection with kubelet: %s; trying again", self.resource, _short(error))
            await _wait(stop, PAUSE)

    async def _session(self, stop: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=EAGER) as channel:
            async with asyncio.timeout(READY):
                await channel.channel_ready()
            kubelet = files.identity(self._kubelet)
            server = await self._serve()
            try:
                await self._register(channel)
                await self._until_over(stop, kubelet)
            finally:
                await self._close(server)

    async def _serve(self) -> grpc.aio.Server:
        """Binds under a name of its own and renames.

        gRPC removes the name it bound when a server is destroyed, which may be after its successor has bound.
        """
        self._closing.clear()
        bound = self._folder / f".{self._socket.name}.new"
        bound.unlink(missing_ok=True)
        server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{bound}")
        await server.start()
        bound.replace(self._socket)
        return server

    async def _register(self, channel: grpc.aio.Channel) -> None:
        request = pb.RegisterRequest(
            version=API, endpoint=self._socket.name, resource_name=self.resource, options=_options()
        )
        stub = pb_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
        await stub.Register(request, timeout=CONNECT)
        async with asyncio.timeout(CONNECT):
            while not self.registered:
                self._changed.clear()
                await self._changed.wait()
        logger.info("%s is registered with kubelet", self.resource)

    async def _until_over(self, stop: asyncio.Event, kubelet: tuple[int, int, int] | None) -> None:
        own = files.identity(self._socket)
        while not stop.is_set():
            if not self.registered:
                logger.info("%s: kubelet ended the connection", self.resource)
                return
            if files.identity(self._kubelet) != kubelet or files.identity(self._socket) != own:
                logger.info("%s: kubelet was restarted", self.resource)
                return
            await _wait(stop, POLL)

    async def _close(self, server: grpc.aio.Server) -> None:
        """Lets calls under way finish; ends ListAndWatch at once."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.unlink(missing_ok=True)
        await server.stop(GRACE)

    async def GetDevicePluginOptions(  # noqa: N802 - kubelet's name
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],  # noqa: ARG002
    ) -> pb.DevicePluginOptions:
        """Asks for PreStartContainer."""
        return _options()

    async def ListAndWatch(  # noqa: N802 - kubelet's name
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse],  # noqa: ARG002
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All tickets, once; nothing about them ever changes."""
        self._count(1)
        try:
            yield pb.ListAndWatchResponse(devices=self._devices)
            await self._closing.wait()
        finally:
            self._count(-1)

    async def Allocate(  # noqa: N802 - kubelet's name
        self,
        request: pb.AllocateRequest,
        context: grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse],  # noqa: ARG002
    ) -> pb.AllocateResponse:
        """A fresh CDI device name for each container."""
        answer = pb.AllocateResponse()
        for container in request.container_requests:
            name = await self._answers.allocate(self.resource, list(container.devices_ids))
            answer.container_responses.add().cdi_devices.add(name=name)
        return answer

    async def PreStartContainer(  # noqa: N802 - kubelet's name
        self,
        request: pb.PreStartContainerRequest,
        context: grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse],
    ) -> pb.PreStartContainerResponse:
        """The slice of the container that is about to start, or what is in its way."""
        try:
            await self._answers.start(self.resource, list(request.devices_ids))
        except Refused as refusal:
            logger.warning("refused %s: %s", sorted(request.devices_ids), refusal)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
        return pb.PreStartContainerResponse()

    def _count(self, change: int) -> None:
        self._streams += change
        self._changed.set()


def _options() -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(pre_start_required=True)


def _short(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name} {error.details()}"
    return repr(error)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
