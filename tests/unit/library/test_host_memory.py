"""How much memory the container may still use, in each layout of cgroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from trainyard_torch.checkpoint.host_memory import HostMemory, host_memory

if TYPE_CHECKING:
    from pathlib import Path

V1 = "4:memory:/kubepods/pod1/a\n1:cpu,cpuacct:/kubepods\n0::/\n"
V2 = "0::/kubepods/pod1/a\n"
STAT = "inactive_anon 500\nactive_file 100\ninactive_file 50\nshmem 500\n"
FOUND = HostMemory(limit=3200, free=2350)


def version_1(folder: str, limit: str = "3200") -> dict[str, str]:
    path = f"memory/{folder}".rstrip("/")
    return {
        f"{path}/memory.limit_in_bytes": f"{limit}\n",
        f"{path}/memory.usage_in_bytes": "1000\n",
        f"{path}/memory.stat": "active_file 1\ntotal_active_file 100\ntotal_inactive_file 50\n",
    }


def version_2(folder: str, limit: str = "3200", stat: str = STAT) -> dict[str, str]:
    path = f"{folder}/" if folder else ""
    return {f"{path}memory.max": f"{limit}\n", f"{path}memory.current": "1000\n", f"{path}memory.stat": stat}


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        pytest.param(V2, version_2("kubepods/pod1/a"), FOUND, id="v2"),
        pytest.param("0::/\n", version_2(""), FOUND, id="v2 in a cgroup namespace"),
        pytest.param(V2, version_2(""), FOUND, id="v2 with the host's path"),
        pytest.param(V2, version_2("kubepods/pod1/a", "max"), None, id="v2 without a limit"),
        pytest.param(V2, version_2("", "900", ""), HostMemory(900, 0), id="more used than allowed"),
        pytest.param(V2, version_2("", "3200", "nonsense"), HostMemory(3200, 2200), id="malformed statistics"),
        pytest.param(V1, version_1("kubepods/pod1/a"), FOUND, id="v1"),
        pytest.param(V1, version_1(""), FOUND, id="v1 with the host's path"),
        pytest.param(V1, version_1("", str((1 << 63) - 4096)), None, id="v1 without a limit"),
        pytest.param(V2, {"memory.max": "3200\n"}, None, id="use unknown"),
        pytest.param("", {}, None, id="no cgroups"),
    ],
)
def test_free_memory_is_read(tmp_path: Path, groups: str, files: dict[str, str], found: HostMemory | None) -> None:
    (tmp_path / "self").write_text(groups)
    for name, text in files.items():
        (tmp_path / "sys" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys" / name).write_text(text)
    assert host_memory(tmp_path / "self", tmp_path / "sys") == found


def test_missing_cgroup_file_means_unknown(tmp_path: Path) -> None:
    assert host_memory(tmp_path / "none", tmp_path) is None


def test_a_reserve_stays_free_for_the_training() -> None:
    assert HostMemory(limit=3200, free=2350).usable == 2250
    assert HostMemory(limit=3200, free=50).usable == 0
