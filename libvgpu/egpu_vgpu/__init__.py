"""The agent's side of libvgpu: read and write the limits page and the usage region, find the library.

`limits` and `usage` compile the very header that the library is built from, so both sides share one layout.
Build first: `python libvgpu/build_native.py`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["library_path"]


def library_path() -> Path:
    """Path of the built libvgpu.so.

    Raises:
        FileNotFoundError: it was not built.
    """
    path = Path(__file__).resolve().parent / "libvgpu.so"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: build it with python libvgpu/build_native.py")
    return path
