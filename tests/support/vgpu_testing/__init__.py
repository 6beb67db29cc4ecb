"""A slice on a simulated node, and programs that run inside it as in a container."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from egpu_vgpu import limits, usage
from gpusim.testing import running, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusim.testing import GpusimNode

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "native" / "c"
IMPORTS = ":".join(str(ROOT / folder) for folder in ("libvgpu", "tests/support", "tests/gpusim"))
MIB = 1 << 20
GRANULE = 2 * MIB
CONTEXT = 64 * MIB
CARD = {"model": "NVIDIA-T4", "memory_mib": 4096, "reserved_mib": 0, "context_bytes": CONTEXT, "module_bytes": 0}
SLICE_UID = "4be5f5a0-0000-4000-8000-000000000001"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A slice of one card: its two files, and how to run a program that has them.

    Attributes:
        node: the simulated node.
        folder: where `limits` and `usage` are.
        library: what is preloaded; None for the built library.
    """

    node: GpusimNode
    folder: Path
    library: Path | None = None

    @property
    def limits(self) -> Path:
        return self.folder / "limits"

    @property
    def usage(self) -> Path:
        return self.folder / "usage"

    @property
    def card(self) -> str:
        """UUID of the slice's card."""
        return self.node.uuids[0]

    def resize(self, memory: int, *, context: int = 0) -> None:
        """Put another memory limit in force, in bytes."""
        card = limits.CardLimit(uuid=self.card, memory=memory, context=context)
        limits.write(self.limits, limits.LimitsPage(slice_uid=SLICE_UID, cards=(card,)))

    def processes(self) -> tuple[usage.ProcessUsage, ...]:
        """The slice's live processes by the usage region."""
        return usage.read(self.usage)

    def used(self) -> int:
        """Bytes that the driver really gave to processes on the slice's card."""
        return self.node.truth().card(self.card).used

    def peak(self) -> int:
        """Most bytes that the process which ended last ever had on the slice's card; waits until the driver knows."""
        ended = wait_for(lambda: self.used() == 0 and self.node.truth().ended, what="the process's end")
        usage_ = ended[-1].cards.get(self.card)
        return usage_.peak if usage_ else 0

    def command(self, *program: str, limits_page: bool = True, usage_region: bool = True) -> list[str]:
        """The command line that runs `program` inside the slice."""
        files = [*(["--limits", str(self.limits)] if limits_page else [])]
        files += ["--usage", str(self.usage)] if usage_region else []
        files += ["--library", str(self.library)] if self.library else []
        return [sys.executable, "-m", "egpu_vgpu.enclose", *files, "--", *program]

    def start(self, *program: str, env: Mapping[str, str] | None = None, **files: bool) -> subprocess.Popen[str]:
        """Start a program inside the slice, with pipes."""
        return self.node.start(self.command(*program, **files), PYTHONPATH=IMPORTS, **(env or {}))

    def python(self, code: str, *arguments: str, env: Mapping[str, str] | None = None, **files: bool) -> str:
        """Run Python inside the slice to its end and give what it printed. `vgpu_testing.driver` is at hand there."""
        return self.run(sys.executable, "-c", code, *arguments, env=env, **files)

    def run(self, *program: str, env: Mapping[str, str] | None = None, **files: bool) -> str:
        """Run a program inside the slice to its end and give what it printed; it must exit with 0."""
        process = self.start(*program, env=env, **files)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
        return out


def simulated(**changes: object) -> contextlib.AbstractContextManager[GpusimNode]:
    """A node with one card of 4 GiB whose contexts take 64 MiB; `changes` to its description."""
    return running({"cards": [CARD], **changes})


@contextlib.contextmanager
def slice_of(
    memory: int, *, node: GpusimNode, context: int = CONTEXT, library: Path | None = None, slots: int = 64
) -> Iterator[Slice]:
    """A slice of the node's first card with a memory limit in bytes.

    Args:
        memory: the limit.
        node: the node; its other slices are of no account.
        context: what the limits page says a context takes; 0 lets the library measure.
        library: another build of the library.
        slots: most processes at a time.
    """
    with tempfile.TemporaryDirectory(prefix="egpu-slice-") as folder:
        Path(folder).chmod(0o755)
        piece = Slice(node=node, folder=Path(folder), library=library)
        piece.resize(memory, context=context)
        usage.create(piece.usage, SLICE_UID, [piece.card], slots=slots)
        yield piece


def compiled(name: str, *flags: str, suffix: str = "") -> Path:
    """Compile tests/native/c/NAME.c, unless the product is newer than the source."""
    folder = ROOT / "build" / "vgpu-tests"
    folder.mkdir(parents=True, exist_ok=True)
    target, source = folder / f"{name}{suffix}", SOURCES / f"{name}.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", str(source), *flags, "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.replace(target)
    return target
