"""The container's memory as the kernel reports it, in each layout of cgroups."""

from pathlib import Path

import pytest

from trainyard_agent.memory import Kills, Memory, free, read

V1 = "4:memory:/kubepods/pod1/a\n1:cpu,cpuacct:/kubepods\n0::/\n"
V2 = "0::/kubepods/pod1/a\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def version_1(folder: str, limit: str = "536870912") -> dict[str, str]:
    path = f"memory/{folder}".rstrip("/")
    return {
        f"{path}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{path}/memory.max_usage_in_bytes": "1000\n",
        f"{path}/memory.limit_in_bytes": f"{limit}\n",
    }


def version_2(folder: str, limit: str = "536870912") -> dict[str, str]:
    path = f"{folder}/" if folder else ""
    events = "low 0\nhigh 0\nmax 5\noom 1\noom_kill 2\noom_group_kill 0\n"
    return {
        f"{path}memory.events": events,
        f"{path}memory.peak": "1000\n",
        f"{path}memory.max": f"{limit}\n",
    }


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        pytest.param(V2, version_2("kubepods/pod1/a"), Memory(2, 1000, 1 << 29), id="v2"),
        pytest.param("0::/\n", version_2(""), Memory(2, 1000, 1 << 29), id="v2 in a cgroup namespace"),
        pytest.param(V2, version_2(""), Memory(2, 1000, 1 << 29), id="v2 with the host's path"),
        pytest.param(V2, version_2("kubepods/pod1/a", "max"), Memory(2, 1000, None), id="v2 without a limit"),
        pytest.param(V1, version_1("kubepods/pod1/a"), Memory(2, 1000, 1 << 29), id="v1"),
        pytest.param(V1, version_1(""), Memory(2, 1000, 1 << 29), id="v1 with the host's path"),
        pytest.param(V1, version_1("", str((1 << 63) - 4096)), Memory(2, 1000, None), id="v1 without a limit"),
        pytest.param(V2, {"memory.events": "oom_kill 1\n"}, Memory(1, None, None), id="old kernel"),
        pytest.param(V2, {"memory.events": "nonsense\n"}, Memory(None, None, None), id="malformed"),
        pytest.param("", {}, Memory(None, None, None), id="no cgroups"),
    ],
)
def test_cgroup_memory_is_read(tmp_path: Path, groups: str, files: dict[str, str], found: Memory) -> None:
    (tmp_path / "self").write_text(groups)
    assert read(tmp_path / "self", tree(tmp_path / "sys", files)) == found


def test_missing_cgroup_gives_no_values(tmp_path: Path) -> None:
    assert read(tmp_path / "none", tmp_path) == Memory(None, None, None)


@pytest.mark.parametrize("folder", ["kubepods/pod1/a", ""])
def test_free_memory_includes_page_cache(tmp_path: Path, folder: str) -> None:
    """The page cache can be reclaimed; files in /dev/shm cannot."""
    (tmp_path / "self").write_text(V2)
    path = f"{folder}/" if folder else ""
    stat = "anon 50\nfile 800\nshmem 100\ninactive_file 300\nactive_file 400\n"
    files = {**version_2(folder, "1000"), f"{path}memory.current": "900\n", f"{path}memory.stat": stat}
    assert free(tmp_path / "self", tree(tmp_path / "sys", files)) == 1000 - 900 + 700


def test_free_memory_of_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "self").write_text(V1)
    path = "memory/kubepods/pod1/a"
    stat = "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 400\n"
    files = {
        **version_1("kubepods/pod1/a", "1000"),
        f"{path}/memory.usage_in_bytes": "900\n",
        f"{path}/memory.stat": stat,
    }
    assert free(tmp_path / "self", tree(tmp_path / "sys", files)) == 1000 - 900 + 700


def test_free_memory_is_unknown_without_limit(tmp_path: Path) -> None:
    (tmp_path / "self").write_text(V2)
    assert free(tmp_path / "self", tree(tmp_path / "sys", version_2("", "max"))) is None
    assert free(tmp_path / "none", tmp_path) is None


def test_age_of_last_oom_kill() -> None:
    kills, now, reads = 4, 100.0, 0

    def count() -> Memory:
        nonlocal reads
        reads += 1
        return Memory(kills, None, None)

    watch = Kills(count, lambda: now)
    assert watch.now() == (Memory(4, None, None), 0.0)
    kills, now = 5, 101.5
    watch.look()
    before = reads
    for _ in range(100):
        now += 0.005
        watch.look()
    assert reads == before, "twice a second would be too often"
    now = 151.5
    watch.look()
    assert watch.now() == (Memory(5, None, None), 50.0)
    kills = 6
    assert watch.now() == (Memory(6, None, None), 0.0)
    assert watch.before.oom_kills == 4
