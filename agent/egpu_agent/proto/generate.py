"""Writes the Python modules of the .proto files beside them: ``python -m egpu_agent.proto.generate``."""

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNTYPED = "# mypy: ignore-errors\n"


def main() -> int:
    """Exit status of protoc."""
    files = [str(path) for path in sorted(HERE.glob("*.proto"))]
    outputs = (f"--python_out={ROOT}", f"--pyi_out={ROOT}", f"--grpc_python_out={ROOT}")
    status: int = protoc.main(["protoc", f"-I{ROOT}", *outputs, *files])
    for path in (*HERE.glob("*_pb2_grpc.py"), *HERE.glob("*_pb2.pyi")):
        path.write_text(UNTYPED + path.read_text())
    return status


if __name__ == "__main__":
    sys.exit(main())
