import json
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.recovery.milestones import DiaryReader, Group, Life
from dev.benchmarks.recovery.parts import PARTS, Moments, shows_fault, split, steps_lost

BEFORE, AFTER = "aaa", "bbb"


def diary(rank: int, group: str, *, began: float, first: int, steps: int = 3) -> list[dict[str, Any]]:
    """Rank r is r tenths of a second behind rank 0 until all are connected; a step takes a tenth."""
    behind = began + rank / 10
    return [
        {"what": "started", "at": behind, "rank": rank, "pod": f"pod-{rank}"},
        {"what": "imported", "at": behind + 2},
        {"what": "connected", "at": began + 3, "group": group},
        {"what": "loaded", "at": began + 3.5, "step": first - 1},
        *({"what": "step", "at": began + 3.6 + i / 10, "step": first + i} for i in range(steps)),
    ]


def life(*words: Any, **more: Any) -> Life:
    made = Life()
    for line in diary(*words, **more):
        made.take(line)
    return made


def group(name: str, *, began: float, first: int, steps: int = 3) -> Group:
    return Group(name, tuple(life(rank, name, began=began, first=first, steps=steps) for rank in range(4)))


OLD = group(BEFORE, began=0, first=1, steps=27)
NEW = group(AFTER, began=20, first=21)


def write(folder: Path, name: str, lines: list[dict[str, Any]]) -> None:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_processes_are_assigned_to_the_groups_they_formed(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, f"old-{rank}.jsonl", diary(rank, BEFORE, began=0, first=1))
        write(tmp_path, f"new-{rank}.jsonl", diary(rank, AFTER, began=20, first=3))
    write(tmp_path, "alone.jsonl", diary(0, "ccc", began=30, first=5, steps=0)[:2])
    old, new = DiaryReader(tmp_path).read()
    assert (old.name, new.name) == (BEFORE, AFTER)
    assert [life.pod for life in new.lives] == ["pod-0", "pod-1", "pod-2", "pod-3"]
    assert (new.first_step, new.last_step) == ((3, 23.6), 5)


def test_group_is_complete_once_each_rank_steps(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, f"{rank}.jsonl", diary(rank, AFTER, began=0, first=1, steps=0 if rank == 2 else 1))
    diaries = DiaryReader(tmp_path)
    assert not diaries.read()[0].complete
    with (tmp_path / "2.jsonl").open("a") as file:
        file.write('{"what": "step", "at"')
        file.flush()
        assert not diaries.read()[0].complete, "half a line is none"
        file.write(': 3.6, "step": 1}\n')
    assert diaries.read()[0].complete


def test_the_parts_add_up_to_the_whole() -> None:
    parts = split(Moments(fault=10, noticed=11, decided=11.5, stopped=12), NEW)
    assert parts == pytest.approx(
        {"detect": 1, "decide": 0.5, "stop": 0.5, "start": 8.3, "import": 2, "connect": 0.7, "load": 0.5, "step": 0.1}
    )
    assert tuple(parts) == PARTS
    assert sum(seconds or 0 for seconds in parts.values()) == pytest.approx(NEW.first_step[1] - 10)


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        (Moments(10), {"detect": None, "decide": None, "stop": None, "start": 10.3}),
        (Moments(10, stopped=12), {"detect": None, "decide": None, "stop": 2, "start": 8.3}),
        # The pod's event may come after the job's.
        (Moments(10, noticed=14, decided=11, stopped=12), {"detect": 1, "decide": 0, "stop": 1, "start": 8.3}),
        # All had ended by themselves before it was decided.
        (Moments(10, noticed=11, decided=13, stopped=11), {"detect": 1, "decide": 2, "stop": 0, "start": 7.3}),
        # An operator that came back late tells of what has long happened without it.
        (Moments(10, noticed=11, decided=40, stopped=12), {"detect": 1, "decide": None, "stop": 1, "start": 8.3}),
    ],
    ids=["nothing observed", "only the end", "job before pod", "stopped before decided", "reported too late"],
)
def test_unobserved_part_counts_toward_the_next_one(moments: Moments, expected: dict[str, float | None]) -> None:
    parts = split(moments, NEW)
    assert {name: parts[name] for name in expected} == pytest.approx(expected)
    assert sum(seconds or 0 for seconds in parts.values()) == pytest.approx(13.6)


def test_steps_done_again_are_lost() -> None:
    assert steps_lost(OLD, NEW) == 7
    assert steps_lost(OLD, group(AFTER, began=20, first=28)) == 0


def event(kind: str = "MODIFIED", *, deleted: bool = False, **status: Any) -> dict[str, Any]:
    metadata = {"name": "w", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    return {"type": kind, "object": {"metadata": metadata, "status": status}}


RUNNING = {"state": {"running": {}}, "restartCount": 0}


@pytest.mark.parametrize(
    ("seen", "tells"),
    [
        (event(phase="Running", containerStatuses=[RUNNING]), False),
        (event(phase="Pending"), False),
        (event(phase="Pending", conditions=[{"type": "PodScheduled", "status": "False"}]), False),
        (event("DELETED"), True),
        (event(deleted=True, phase="Running"), True),
        (event(phase="Failed"), True),
        (event(phase="Running", containerStatuses=[{"state": {"terminated": {"exitCode": 137}}}]), True),
        (event(phase="Running", containerStatuses=[{**RUNNING, "restartCount": 1}]), True),
        (event(containerStatuses=[RUNNING], conditions=[{"type": "Ready", "status": "False"}]), True),
    ],
    ids=["running", "waiting", "unschedulable", "gone", "terminating", "failed", "exited", "restarted", "node lost"],
)
def test_pod_status_reveals_the_fault(seen: dict[str, Any], tells: bool) -> None:  # noqa: FBT001 - a column of the table
    assert shows_fault(seen) is tells
