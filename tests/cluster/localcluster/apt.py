"""Debian's packages that the cluster needs beside its own programs."""

from __future__ import annotations

import os
import shutil
import subprocess

PACKAGES = {
    "runc": "runc",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "nftables": "nft",
    "mmdebstrap": "mmdebstrap",
    "gcc": "cc",
    "libc6-dev": "",
}
"""Each with the command by which its presence is known; one without comes with those above it."""

_PATH = os.pathsep.join(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


def missing_apt_packages() -> list[str]:
    """The packages whose commands are not there."""
    missing = [name for name, command in PACKAGES.items() if command and not shutil.which(command, path=_PATH)]
    return [*missing, "libc6-dev"] if "gcc" in missing else missing


def install_command(packages: list[str]) -> str:
    """The one line that installs them."""
    return f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"


def install() -> int:
    """Install what is missing when root, else say how.

    Returns:
        0 when nothing is missing any more.
    """
    missing = missing_apt_packages()
    if not missing:
        print("nothing is missing")
        return 0
    if os.geteuid():
        print(f"missing: {', '.join(missing)}. As root: {install_command(missing)}")
        return 1
    print(f"installing {', '.join(missing)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True, env=environment
    )
    return 0
