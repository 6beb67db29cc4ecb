"""The images that the cluster runs, made from Debian's packages, PyPI and this repository."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from localcluster import binaries, constants, oci

if TYPE_CHECKING:
    from pathlib import Path

_PAUSE = """
#include <signal.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


def cache() -> Path:
    """Where images and their layers are kept between runs."""
    folder = binaries.user_cache() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pause() -> Path:
    """The image that holds a pod's namespaces: one static program."""
    archive = cache() / "pause-1.tar"
    if not archive.exists():
        program = cache() / "pause"
        subprocess.run(
            ["cc", "-x", "c", "-static", "-O2", "-s", "-o", str(program), "-"], input=_PAUSE, text=True, check=True
        )
        layer = oci.pack(cache() / "pause-layer.tar", {"pause": program})
        oci.write(archive, oci.Image(name=constants.PAUSE_IMAGE, layers=(layer,), entrypoint=("/pause",)))
    return archive
