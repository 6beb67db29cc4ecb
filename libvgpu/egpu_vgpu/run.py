"""`egpu-run`: a slice for one program, without Kubernetes.

    egpu-run --memory 4Gi [--core 25] [--card UUID|INDEX]... [--name NAME] -- PROGRAM ...
    egpu-run ps

The program gets a private mount namespace with the files that a container would have, then takes this process's place.
Runs of one name share a slice; the last limits given hold for all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from egpu_vgpu import library_path, limits, usage
from egpu_vgpu.enclose import EncloseError, enclose

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T|Ki|Mi|Gi|Ti)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_UUID_BYTES = 96


class RunError(Exception):
    """The slice cannot be made; the text is one line that says what to write or to install instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _ps() if words == ["ps"] else _run(_parse(words))
    except (RunError, EncloseError, limits.LimitsError, usage.UsageError, OSError) as error:
        sys.stderr.write(f"egpu-run: {error}\n")
        return 127


def quantity(text: str) -> int:
    """Bytes of a Kubernetes quantity such as `4Gi` or `500M`.

    Raises:
        RunError: it is none.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise RunError(f"{text!r} is no amount of memory: write for example 4Gi, 512Mi or 2000000000")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="egpu-run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", required=True, help="memory on each card, for example 4Gi")
    parser.add_argument("--core", type=int, default=100, help="percent of each card's time (default: 100)")
    parser.add_argument("--card", action="append", metavar="UUID|INDEX", help="a card of the slice (default: 0)")
    parser.add_argument("--name", help="share the slice of this name")
    parser.add_argument("program", nargs="+", help="program and its arguments, after --")
    return parser.parse_args(words)


def _run(options: argparse.Namespace) -> int:
    memory = quantity(options.memory)
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise RunError(f"name {options.name!r}: write up to 63 letters, digits, dots, dashes and underscores")
    cards = [_uuid(card) for card in options.card or ["0"]]
    folder = _folder(options.name or f"run-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    page = limits.LimitsPage(
        slice_uid=folder.name,
        cards=tuple(limits.CardLimit(uuid=card, memory=memory, core=options.core) for card in cards),
    )
    limits.write(folder / "limits", page)
    usage.create(folder / "usage", folder.name, cards)
    enclose(limits=folder / "limits", usage=folder / "usage", library=library_path())
    os.execvp(options.program[0], options.program)  # noqa: S606 - to exec is what this is for


def _ps() -> int:
    """Print the live slices, and clear away the unnamed ones that nobody uses any more."""
    sys.stdout.write(f"{'SLICE':<24} {'PID':>8} {'PROGRAM':<16} {'CARD':<44} {'USED':>10} {'LIMIT':>10}\n")
    for folder in sorted(_root().glob("*")):
        rows = _rows(folder)
        sys.stdout.writelines(rows)
        if not rows and folder.name.startswith("run-") and not _runs(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _rows(folder: Path) -> list[str]:
    try:
        processes = usage.read(folder / "usage")
        memory = {card.uuid: card.memory for card in limits.read(folder / "limits").cards}
    except (usage.UsageError, limits.LimitsError):
        return []  # being made just now, or left half made
    return [
        f"{folder.name:<24} {process.pid:>8} {process.name:<16} {card.uuid:<44}"
        f" {card.charged >> 20:>7} Mi {memory.get(card.uuid, 0) >> 20:>7} Mi\n"
        for process in processes
        for card in process.cards
    ]


def _runs(name: str) -> bool:
    """Whether the process that an unnamed slice was made for is still there; it may not have used the card yet."""
    return Path(f"/proc/{name.split('-')[1]}").exists()


def _root() -> Path:
    if os.geteuid() == 0:
        return Path("/run/elasticgpu/run")
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/egpu-{os.geteuid()}") / "egpu-run"  # noqa: S108


def _folder(name: str) -> Path:
    folder = _root() / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    if folder.stat().st_uid != os.geteuid():
        raise RunError(f"{folder} belongs to somebody else: remove it or choose another --name")
    return folder


def _uuid(card: str) -> str:
    """A card's UUID; an index is asked of the driver."""
    if not card.isdigit():
        return card
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise RunError("libnvidia-ml.so.1 is not there: install the NVIDIA driver, or name the card by UUID") from error
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
    results = (
        nvml.nvmlInit_v2(),
        nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(card)), ctypes.byref(handle)),
        nvml.nvmlDeviceGetUUID(handle, text, ctypes.c_uint(_UUID_BYTES)),
    )
    nvml.nvmlShutdown()
    if any(results):
        raise RunError(f"there is no card {card}: nvidia-smi -L lists what there is")
    return text.value.decode()


if __name__ == "__main__":
    raise SystemExit(main())
