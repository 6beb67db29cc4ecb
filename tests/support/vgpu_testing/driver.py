"""The CUDA driver API by ctypes, as a program inside a slice calls it: dlopen and dlsym."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

OUT_OF_MEMORY = 2


class Driver:
    """libcuda with a current primary context on device 0, unless `context` is False."""

    def __init__(self, *, context: bool = True) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        assert self.cuda.cuInit(0) == 0
        self.context = c_void_p()
        if context:
            assert self.retain() == 0, reason()

    def retain(self) -> int:
        """Retain device 0's primary context and make it current."""
        result: int = self.cuda.cuDevicePrimaryCtxRetain(byref(self.context), 0)
        return result or int(self.cuda.cuCtxSetCurrent(self.context))

    def alloc(self, size: int) -> int:
        """Allocate; the address, or minus the error."""
        address = c_ulonglong()
        result = self.cuda.cuMemAlloc_v2(byref(address), c_size_t(size))
        return -result if result else address.value

    def managed(self, size: int) -> int:
        address = c_ulonglong()
        result = self.cuda.cuMemAllocManaged(byref(address), c_size_t(size), c_uint(1))
        return -result if result else address.value

    def pitch(self, width: int, height: int) -> int:
        address, pitch = c_ulonglong(), c_size_t()
        result = self.cuda.cuMemAllocPitch_v2(
            byref(address), byref(pitch), c_size_t(width), c_size_t(height), c_uint(4)
        )
        return -result if result else address.value

    def alloc_async(self, size: int) -> int:
        address = c_ulonglong()
        result = self.cuda.cuMemAllocAsync(byref(address), c_size_t(size), None)
        return -result if result else address.value

    def free_async(self, address: int) -> int:
        return int(self.cuda.cuMemFreeAsync(c_ulonglong(address), None))

    def free(self, address: int) -> int:
        return int(self.cuda.cuMemFree_v2(c_ulonglong(address)))

    def info(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = c_size_t(), c_size_t()
        assert self.cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
        return free.value, total.value

    def total(self) -> int:
        total = c_size_t()
        assert self.cuda.cuDeviceTotalMem_v2(byref(total), c_int(0)) == 0
        return total.value

    def fill(self, size: int, *, most: int = 1 << 20) -> list[int]:
        """Allocate until it is refused; the addresses."""
        held: list[int] = []
        while len(held) < most and (address := self.alloc(size)) > 0:
            held.append(address)
        return held

    def array(self, width: int, height: int) -> int:
        """A two-dimensional array of floats; its handle, or minus the error."""

        class Description(ctypes.Structure):
            _fields_ = (("w", c_size_t), ("h", c_size_t), ("format", c_uint), ("channels", c_uint))

        handle = c_void_p()
        result = self.cuda.cuArrayCreate_v2(byref(handle), byref(Description(width, height, 0x20, 1)))
        return -result if result else int(handle.value or 0)

    def create(self, size: int) -> int:
        """Physical memory of device 0; its handle, or minus the error."""
        handle, properties = c_ulonglong(), (c_int * 8)(1, 0, 1, 0)
        result = self.cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_ulonglong(0))
        return -result if result else handle.value

    def map(self, handle: int, size: int) -> int:
        """Reserve addresses and map the physical memory there; the address."""
        address = c_ulonglong()
        assert (
            self.cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_ulonglong(0), c_ulonglong(0))
            == 0
        )
        result = self.cuda.cuMemMap(address, c_size_t(size), c_size_t(0), c_ulonglong(handle), c_ulonglong(0))
        return -result if result else address.value

    def unmap(self, address: int, size: int) -> int:
        return int(self.cuda.cuMemUnmap(c_ulonglong(address), c_size_t(size)))

    def release(self, handle: int) -> int:
        return int(self.cuda.cuMemRelease(c_ulonglong(handle)))


def reason() -> str:
    """Why the library last refused something; empty if never, or if it is not loaded."""
    try:
        function = ctypes.CDLL(None).egpu_vgpu_reason
    except AttributeError:
        return ""
    function.restype = c_char_p
    text: bytes = function()
    return text.decode()
