"""A real API server for the integration tests, with the custom resource definitions applied."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import LocalCluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """etcd, kube-apiserver and kube-controller-manager, reachable from and reaching this machine's loopback address."""
    base = os.environ.get("EGPU_TEST_DIR")
    folder = Path(base) / f"control-plane-{os.getpid()}" if base else tmp_path_factory.mktemp("control") / "plane"
    with LocalCluster(folder, nodes=0) as cluster:
        cluster.kubectl("apply", "-f", str(ROOT / "crds"))
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        yield cluster
