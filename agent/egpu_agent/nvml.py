"""The only module that speaks NVML: plain values out, every error of the driver classified once.

The driver's library belongs to the node, not to this image: it is looked for below the driver's possible roots and
loaded by its full path. pynvml then asks for ``libnvidia-ml.so.1`` and gets what is loaded under that soname.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pynvml

logger = logging.getLogger(__name__)

SONAME: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
    "opt/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
)
XID: Final = int(pynvml.nvmlEventTypeXidCriticalError)
DOUBLE_BIT_ECC: Final = int(pynvml.nvmlEventTypeDoubleBitEccError)

T = TypeVar("T")


class NvmlError(Exception):
    """The driver said no."""


class DriverMissing(NvmlError):
    """There is no driver, it is not loaded, or it is another version than its library."""


class CardLost(NvmlError):
    """The card is there and does not answer."""


class NotSupported(NvmlError):
    """This driver or this card does not have what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A card as NVML describes it; ``memory`` is what can be allocated, in bytes."""

    uuid: str
    index: int
    model: str
    memory: int
    cores: int
    compute_capability: str
    pci_bus_id: str
    numa_node: int
    ecc_errors: int
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One NVML event: type as in the constants of this module, and for an XID its number."""

    uuid: str
    kind: int
    data: int


def find_library(roots: Sequence[Path]) -> Path | None:
    """The driver's library below the first root that has it."""
    candidates = (root / folder / SONAME for root in roots for folder in FOLDERS)
    return next((path for path in candidates if path.exists()), None)


class Nvml:
    """An initialised NVML. Its methods raise :class:`NvmlError` alone."""

    @classmethod
    def open(cls, roots: Sequence[Path]) -> Self:
        """Loads and initialises; :class:`DriverMissing` where there is nothing to load."""
        path = find_library(roots)
        if path is None:
            places = ", ".join(str(root) for root in roots)
            raise DriverMissing(f"{SONAME} was not found below {places}: install the NVIDIA driver on the node")
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise DriverMissing(f"{path} cannot be loaded: {error}") from error
        with _classified("nvmlInit"):
            pynvml.nvmlInit()
        logger.info("driver library %s", path)
        return cls()

    def versions(self) -> tuple[str, str]:
        """Version of the driver, and the highest CUDA version it serves."""
        with _classified("version"):
            cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
            return _text(pynvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}"

    def cards(self) -> tuple[list[CardFacts], list[str]]:
        """The cards that answer, and the UUIDs (or ``index <n>``) of those that do not."""
        with _classified("nvmlDeviceGetCount"):
            count = pynvml.nvmlDeviceGetCount()
        facts: list[CardFacts] = []
        lost: list[str] = []
        for index in range(count):
            name = f"index {index}"
            try:
                with _classified(name):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    name = _text(pynvml.nvmlDeviceGetUUID(handle))
                    facts.append(_facts(handle, index, name))
            except CardLost:
                lost.append(name)
        return facts, lost

    def processes(self, uuid: str) -> list[tuple[int, int]]:
        """Pid and bytes (0 where unknown) of everything that holds memory of a card."""
        with _classified(uuid):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            found = [
                *_optional(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), []),
                *_optional(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), []),
            ]
        return [(int(entry.pid), int(entry.usedGpuMemory or 0)) for entry in found]

    def events(self, uuids: Sequence[str]) -> "Events":
        """Waits for events of some cards."""
        return Events(uuids)


class Events:
    """A set of registered events. Cards that know none are left out."""

    def __init__(self, uuids: Sequence[str]) -> None:
        with _classified("nvmlEventSetCreate"):
            self._set = pynvml.nvmlEventSetCreate()
        self._count = sum(self._register(uuid) for uuid in uuids)

    def wait(self, seconds: float) -> Event | None:
        """The next event, or None after so long. :class:`NotSupported` when no card knows events."""
        if not self._count:
            raise NotSupported("no card of this node reports events")
        try:
            with _classified("nvmlEventSetWait"):
                found = pynvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
                uuid = _text(pynvml.nvmlDeviceGetUUID(found.device))
        except TimeoutError:
            return None
        return Event(uuid=uuid, kind=int(found.eventType), data=int(found.eventData))

    def close(self) -> None:
        """Frees the set."""
        with _classified("nvmlEventSetFree"):
            pynvml.nvmlEventSetFree(self._set)

    def _register(self, uuid: str) -> bool:
        try:
            with _classified(uuid):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceRegisterEvents(handle, XID | DOUBLE_BIT_ECC, self._set)
        except (NotSupported, CardLost):
            return False
        return True


def _facts(handle: object, index: int, uuid: str) -> CardFacts:
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    bus = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    return CardFacts(
        uuid=uuid,
        index=index,
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory=_memory(handle),
        cores=int(_optional(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle), 0)),
        compute_capability=f"{major}.{minor}",
        pci_bus_id=bus,
        numa_node=int(_optional(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle), -1)),
        ecc_errors=int(_optional(lambda: _ecc(handle), 0)),
        peers=tuple(_peers(handle)),
    )


def _memory(handle: object) -> int:
    """Total less what the driver keeps for itself; older drivers count that as used from the start."""
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(info.total) - int(info.reserved)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)


def _ecc(handle: object) -> int:
    errors = pynvml.nvmlDeviceGetTotalEccErrors(
        handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    )
    return int(errors)


def _peers(handle: object) -> Iterator[str]:
    """PCI addresses at the far ends of the card's NVLinks."""
    seen = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        info = _optional(partial(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link), None)
        if info is None:
            return
        address = _text(info.busId)
        if address not in seen:
            seen.add(address)
            yield address


def _optional(ask: Callable[[], Any], default: Any) -> Any:  # noqa: ANN401 - whatever pynvml returns
    try:
        return ask()
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NotFound,
        pynvml.NVMLError_InvalidArgument,
        pynvml.NVMLError_NoPermission,
    ):
        return default


_LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND)
_MISSING: Final = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
_UNSUPPORTED: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@contextmanager
def _classified(what: str) -> Iterator[None]:
    try:
        yield
    except pynvml.NVMLError as error:
        value = int(error.value)
        if value == pynvml.NVML_ERROR_TIMEOUT:
            raise TimeoutError(what) from error
        hint = "; restart this agent's pod" if value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH else ""
        raise _kind(value)(f"{what}: {error}{hint}") from error


def _kind(value: int) -> type[NvmlError]:
    if value in _LOST:
        return CardLost
    if value in _MISSING:
        return DriverMissing
    return NotSupported if value in _UNSUPPORTED else NvmlError


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
