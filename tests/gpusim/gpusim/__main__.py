"""Command line: `python -m gpusim serve|build|install|truth|fault`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpusim import build, config, faults, install, truth
from gpusim.daemon import Daemon, DaemonError
from gpusim.state import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_DIR: Final = Path("/dev/gpusim")
_ERRORS: Final = (build.BuildError, config.ConfigError, faults.FaultError, DaemonError, StateError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 1 and one line on stderr when it fails."""
    options = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
    except _ERRORS as error:
        print(f"gpusim: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpusim", description="A simulated NVIDIA driver.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="be the driver of a node until SIGTERM")
    _add_node(serve)
    _add_dir(serve)
    serve.set_defaults(run=_serve)
    make = commands.add_parser("build", help="compile the libraries; prints the folder")
    make.add_argument("--out", type=Path, default=build.DEFAULT_OUT)
    make.add_argument("--cc", default=build.DEFAULT_CC)
    make.set_defaults(run=_build)
    put = commands.add_parser("install", help="install the libraries and a CDI spec for a node")
    _add_node(put)
    put.add_argument("--root", "--node-root", dest="root", type=Path, default=Path("/"))
    put.add_argument("--cc", default=build.DEFAULT_CC)
    put.set_defaults(run=_install)
    show = commands.add_parser("truth", help="what every process holds and held, as JSON")
    _add_dir(show)
    show.set_defaults(run=_truth)
    fault = commands.add_parser("fault", help="break or heal a card")
    _add_dir(fault)
    fault.add_argument("--card", required=True, metavar="UUID")
    fault.add_argument("kind", choices=["lost", "vanish", "xid", "ecc", "heal"])
    fault.add_argument("number", type=int, nargs="?", default=1, help="the XID, or how many ECC errors")
    fault.set_defaults(run=_fault)
    return parser


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE.yaml")
    parser.add_argument("--node", metavar="NAME")


def _add_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR)


def _serve(options: argparse.Namespace) -> None:
    node = config.load(options.config, node=options.node)
    asyncio.run(Daemon(directory=options.dir, node=node).serve())


def _build(options: argparse.Namespace) -> None:
    print(build.build(out=options.out, cc=options.cc))


def _install(options: argparse.Namespace) -> None:
    node = config.load(options.config, node=options.node)
    print(install.install(node=node, built=build.build(cc=options.cc), root=options.root))


def _truth(options: argparse.Namespace) -> None:
    print(json.dumps(asdict(truth.read(options.dir)), indent=2))


def _fault(options: argparse.Namespace) -> None:
    faults.request(options.dir, faults.Fault(card=options.card, kind=options.kind, number=options.number))


if __name__ == "__main__":
    sys.exit(main())
