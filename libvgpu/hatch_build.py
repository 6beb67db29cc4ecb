"""Hatch build hook: compile the native parts into the wheel and tag it for this interpreter and linux x86_64."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
from build_native import build_all


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds libvgpu.so and the cffi module, both git-ignored, to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what is out of date; an editable install is served by the same files in place."""
        built = build_all()
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): f"egpu_vgpu/{path.name}" for path in built})
