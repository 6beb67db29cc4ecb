"""A simulated node for tests: build, serve in a directory of its own, and the environment of its clients."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpusim import build, config, faults, truth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CONFIGS: Final = Path(__file__).resolve().parent / "configs"
PACKAGE_ROOT: Final = Path(__file__).resolve().parent.parent
START_SECONDS: Final = 20.0
DEADLINE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusimNode:
    """A running node.

    Attributes:
        dir: the node directory; clients find it by `GPUSIM_DIR`.
        lib_dir: holds `libcuda.so.1` and `libnvidia-ml.so.1`.
        env: what a client needs in its environment, over `os.environ`.
        uuids: the cards in bus order.
        daemon: the daemon's process.
    """

    dir: Path
    lib_dir: Path
    uuids: tuple[str, ...]
    daemon: subprocess.Popen[str]
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """A whole environment for a client process."""
        return {**os.environ, **self.overrides}

    def truth(self) -> truth.Truth:
        """What every process really holds."""
        return truth.read(self.dir)

    def fault(self, card: str, kind: str, number: int = 1) -> None:
        """Raise a fault; see `gpusim.faults.Fault`."""
        faults.request(self.dir, faults.Fault.model_validate({"card": card, "kind": kind, "number": number}))

    def python(self, code: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start a Python client with this interpreter; stdin, stdout and stderr are pipes."""
        return self.start([sys.executable, "-c", code, *arguments], **env)

    def start(self, command: Sequence[str], **env: str) -> subprocess.Popen[str]:
        """Start any client; stdin, stdout and stderr are pipes."""
        return subprocess.Popen(
            command,
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *arguments: str, timeout: float = 60.0, **env: str) -> str:
        """Run a Python client to its end; returns its stdout.

        Raises:
            AssertionError: it failed; the message has its stderr.
        """
        client = self.python(code, *arguments, **env)
        out, err = client.communicate(timeout=timeout)
        assert client.returncode == 0, f"exit {client.returncode}\n{out}\n{err}"
        return out


def wait_for(condition: Callable[[], Any], *, what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """The first true value of a condition, asked every 10 ms.

    Raises:
        TimeoutError: it stayed false for that long.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def running(
    description: str | Path | dict[str, Any] = "one-t4", *, node: str | None = None, cc: str = build.DEFAULT_CC
) -> Iterator[GpusimNode]:
    """A node that lives as long as the block.

    Args:
        description: name of a shipped configuration (`one-t4`, `mixed`, `h200x8`), a file, or the YAML as an object.
        node: which node of a description with several.
        cc: compiler of the libraries.
    """
    lib_dir = build.build(cc=cc)
    folder = Path(tempfile.mkdtemp(prefix="gpusim-"))
    folder.chmod(0o755)
    try:
        path = _config_file(description, folder)
        cards = config.load(path, node=node).cards
        daemon = _start(path, folder / "node", node)
        try:
            yield GpusimNode(
                dir=folder / "node",
                lib_dir=lib_dir,
                uuids=tuple(card.uuid for card in cards),
                daemon=daemon,
                overrides=_overrides(folder / "node", lib_dir),
            )
        finally:
            daemon.terminate()
            daemon.communicate(timeout=DEADLINE_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _config_file(description: str | Path | dict[str, Any], folder: Path) -> Path:
    if isinstance(description, dict):
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(description))
        return path
    shipped = CONFIGS / f"{description}.yaml"
    return shipped if shipped.exists() else Path(description)


def _overrides(directory: Path, lib_dir: Path) -> dict[str, str]:
    paths = [str(lib_dir), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"GPUSIM_DIR": str(directory), "LD_LIBRARY_PATH": ":".join(filter(None, paths))}


def _start(path: Path, directory: Path, node: str | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpusim", "serve", "--config", str(path), "--dir", str(directory)]
    daemon = subprocess.Popen(
        [*command, *(["--node", node] if node else [])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{PACKAGE_ROOT}:{os.environ.get('PYTHONPATH', '')}"},
    )
    assert daemon.stdout is not None
    readable, _, _ = select.select([daemon.stdout], [], [], START_SECONDS)
    if not readable or daemon.stdout.readline().strip() != "ready":
        daemon.kill()
        daemon.communicate()
        raise RuntimeError(f"the gpusim daemon did not start: {' '.join(command)}")
    return daemon
