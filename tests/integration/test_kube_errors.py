"""What the API server's answers become."""

from collections.abc import Sequence
from typing import Any

import pytest

from egpu import errors
from egpu.kube import Kube
from egpu.resources import CLASSES
from localcluster import LocalCluster
from operator_stand import gpu_class

pytestmark = pytest.mark.integration

LABEL = "/metadata/labels/x"
PATCHES: dict[str, tuple[Sequence[dict[str, Any]], type[errors.KubeError]]] = {
    "a version that is past": ([{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}], errors.Conflict),
    "a value that is another": ([{"op": "test", "path": LABEL, "value": "z"}], errors.Conflict),
    "a path that has gone": ([{"op": "remove", "path": "/metadata/labels/gone"}], errors.Conflict),
    "a value the schema refuses": ([{"op": "replace", "path": "/reclaimPolicy", "value": "Keep"}], errors.Rejected),
    "a rule's refusal": ([{"op": "replace", "path": "/reclaimPolicy", "value": "Retain"}], errors.Rejected),
}


@pytest.mark.parametrize(("patch", "expected"), PATCHES.values(), ids=PATCHES)
async def test_json_patches(
    control_plane: LocalCluster, patch: Sequence[dict[str, Any]], expected: type[errors.KubeError]
) -> None:
    async with await Kube.connect(kubeconfig=str(control_plane.kubeconfig)) as kube:
        body = gpu_class("patched")
        body["metadata"]["labels"] = {"x": "y"}
        await kube.create(CLASSES, body)
        try:
            with pytest.raises(expected) as caught:
                await kube.patch_json(CLASSES, "patched", patch)
            assert type(caught.value) is expected
        finally:
            await kube.delete(CLASSES, "patched")
