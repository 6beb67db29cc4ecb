"""One cluster for all end-to-end tests, with the product installed; after each test nothing may be left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from egpu_testing import artifacts, leftovers
from egpu_testing.objects import gpu_class
from egpu_testing.stack import ROOT, Stack
from localcluster.cluster import LocalCluster, Node
from localcluster.existing import ExistingCluster, from_kubeconfig


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster | ExistingCluster]:
    """Two nodes with simulated cards of their own, or the cluster that `make test-cluster` was given.

    Not KUBECONFIG itself: the tests delete every pod and claim of the default namespace.
    """
    if config := os.environ.get("EGPU_TEST_KUBECONFIG"):
        yield from_kubeconfig(Path(config))
        return
    folder = Path(os.environ.get("EGPU_TEST_DIR", ROOT / "build")) / "e2e-cluster"
    images = artifacts.images()
    with LocalCluster(folder, nodes=2, gpus=ROOT / "tests/support/cards/e2e.yaml", images=images) as local:
        yield local


@pytest.fixture(scope="session")
def installed(cluster: LocalCluster | ExistingCluster) -> Stack:
    """The product, installed once."""
    stack = Stack(cluster)
    stack.install()
    return stack


@pytest.fixture
def stack(installed: Stack) -> Iterator[Stack]:
    """The product; afterwards every object of the test is deleted and nothing of it may be left anywhere."""
    installed.apply(
        gpu_class("shared"),
        gpu_class("immediate", egpuBindingMode="Immediate"),
        gpu_class("kept", egpuBindingMode="Immediate", reclaimPolicy="Retain"),
    )
    yield installed
    leftovers.clear(installed)
    leftovers.expect_none(installed)


@pytest.fixture
def nodes(cluster: LocalCluster | ExistingCluster) -> tuple[Node, ...]:
    """The nodes, for tests that reach into them."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("reaches into nodes; this cluster gives no access to them")
    return cluster.nodes


@pytest.fixture
def local(cluster: LocalCluster | ExistingCluster) -> LocalCluster:
    """The cluster, for tests that break parts of it."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("breaks parts of the cluster; this one is not ours to break")
    return cluster
