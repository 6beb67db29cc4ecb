"""Whose process is it: cgroup paths of both drivers and both versions, and looking at a /proc."""

import asyncio
import os
from pathlib import Path

import pytest

from egpu_agent.processes import Counter, Process, pod_uid, take

UID = "6f0e2f9e-0c9c-4b43-9b6b-7d2f2f6f7f10"
UNDERSCORED = UID.replace("-", "_")


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        pytest.param(f"0::/kubepods/burstable/pod{UID}/abc\n", UID, id="cgroupfs-v2"),
        pytest.param(f"0::/kubepods/pod{UID}/abc\n", UID, id="guaranteed"),
        pytest.param(
            f"12:memory:/kubepods/besteffort/pod{UID}/abc\n11:cpu:/kubepods/besteffort/pod{UID}/abc\n",
            UID,
            id="cgroupfs-v1",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-ab.scope\n",
            UID,
            id="systemd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-ab.scope\n",
            UID,
            id="systemd-guaranteed",
        ),
        pytest.param(f"0::/../../pod{UID}/abc\n", UID, id="seen-from-a-cgroup-namespace"),
        pytest.param(f"0::/../kubepods-besteffort-pod{UNDERSCORED}.slice/x\n", UID, id="systemd-from-a-namespace"),
        pytest.param(f"0::/kubepods/pod{UID}\n", UID, id="the-pod-itself"),
        pytest.param(f"0::/kubepods/pod{UID}/abc/nested/deeper\n", UID, id="below-the-container"),
        pytest.param("0::/system.slice/containerd.service\n", None, id="the-runtime"),
        pytest.param("0::/kubepods/burstable\n", None, id="no-pod"),
        pytest.param(f"0::/kubepods/pod{UID}0/abc\n", None, id="longer"),
        pytest.param(f"0::/kubepods/xpod{UID}/abc\n", None, id="something-else-before"),
        pytest.param("", None, id="gone"),
    ],
)
def test_pod_of_a_cgroup(cgroup: str, uid: str | None) -> None:
    assert pod_uid(cgroup) == uid


def _process(proc: Path, pid: int, cgroup: str, name: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(f"{name}\n")


def test_census_of_a_proc(tmp_path: Path) -> None:
    _process(tmp_path, 10, f"0::/kubepods/pod{UID}/sandbox\n", "pause")
    _process(tmp_path, 11, f"0::/kubepods/pod{UID}/c\n", "python3")
    _process(tmp_path, 1, "0::/init.scope\n", "systemd")
    (tmp_path / "77").mkdir()
    (tmp_path / "meminfo").write_text("")
    census = take(tmp_path)
    assert set(census.pods) == {UID}
    assert set(census.pods[UID]) == {Process(pid=10, name="pause"), Process(pid=11, name="python3")}
    assert census.pids == {1, 10, 11, 77}


def test_census_of_this_machine() -> None:
    assert os.getpid() in take(Path("/proc")).pids


async def test_a_census_begins_after_it_was_asked_for(tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    first = asyncio.create_task(counter.take())
    while counter._next is not None or not counter._lock.locked():
        await asyncio.sleep(0)
        if first.done():
            break
    _process(tmp_path, 5, f"0::/kubepods/pod{UID}/c\n", "late")
    second, third = await asyncio.gather(counter.take(), counter.take())
    await first
    assert 5 in second.pids
    assert second is third, "those who ask together share one"
