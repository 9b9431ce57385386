from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dev.localcluster import cgroups
from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from pathlib import Path

V1 = ("blkio", "cpu,cpuacct", "cpuset", "memory", "pids", "systemd")


@pytest.fixture
def version1(tmp_path: Path) -> Path:
    """A hybrid host, as Debian 10 and many a virtual machine have it."""
    for name in V1:
        (tmp_path / name).mkdir()
    for name in ("cpu", "cpuacct"):
        (tmp_path / name).symlink_to("cpu,cpuacct")
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-3\n")
    (tmp_path / "cpuset" / "cpuset.mems").write_text("0\n")
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("")
    return tmp_path


@pytest.fixture
def version2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "system.slice").mkdir()
    return tmp_path


def test_which_version(version1: Path) -> None:
    assert not cgroups.is_unified(version1)
    (version1 / "cgroup.controllers").write_text("cpu")
    assert cgroups.is_unified(version1)


def test_version1_has_a_group_in_each_hierarchy_once(version1: Path) -> None:
    assert [path.name for path in cgroups.hierarchies(version1)] == list(V1)
    cgroups.create(2, version1)
    assert all((version1 / name / "trainyard-node2").is_dir() for name in V1)
    assert not (version1 / "unified" / "trainyard-node2").exists()


def test_version1_gives_the_group_processors_and_memory(version1: Path) -> None:
    cgroups.create(2, version1)
    group = version1 / "cpuset" / "trainyard-node2"
    assert (group / "cpuset.cpus").read_text() == "0-3\n"
    assert (group / "cpuset.mems").read_text() == "0\n"


def test_version2_hands_the_missing_controllers_down(version2: Path) -> None:
    cgroups.create(2, version2)
    assert (version2 / "trainyard-node2").is_dir()
    assert (version2 / "cgroup.subtree_control").read_text() == "+cpuset +io +hugetlb"


def test_version2_leaves_what_is_right(version2: Path) -> None:
    (version2 / "cgroup.subtree_control").write_text("cpuset cpu io memory hugetlb pids")
    cgroups.create(2, version2)
    assert (version2 / "cgroup.subtree_control").read_text() == "cpuset cpu io memory hugetlb pids"


def test_removal_deletes_all_groups_of_one_node(version1: Path) -> None:
    for folder in ("memory/trainyard-node1/kubepods/pod1", "unified/trainyard-node1", "memory/trainyard-node12"):
        (version1 / folder).mkdir(parents=True)
    cgroups.remove(1, version1)
    assert [path.name for path in version1.glob("*/trainyard*")] == ["trainyard-node12"]
    cgroups.remove_all(version1)
    assert not list(version1.glob("*/trainyard*"))


def test_removal_in_version2(version2: Path) -> None:
    (version2 / "trainyard-node1" / "kubepods" / "pod1").mkdir(parents=True)
    cgroups.remove_all(version2)
    assert [path.name for path in version2.iterdir() if path.is_dir()] == ["system.slice"]


@pytest.mark.parametrize("name", ["memory", "cpuset", "pids"])
def test_a_missing_controller_is_named(version1: Path, name: str) -> None:
    cgroups.require_controllers(version1)
    (version1 / name).rename(version1 / "gone")
    with pytest.raises(LocalClusterError, match=f"no cgroup controller {name} in"):
        cgroups.require_controllers(version1)


def test_a_missing_controller_of_version2_is_named(version2: Path) -> None:
    cgroups.require_controllers(version2)
    (version2 / "cgroup.controllers").write_text("cpuset cpu io pids")
    with pytest.raises(LocalClusterError, match="no cgroup controller memory in"):
        cgroups.require_controllers(version2)
