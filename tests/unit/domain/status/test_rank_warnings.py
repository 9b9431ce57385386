"""When hidden failures and split groups are reported, and what the warnings advise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.state.termination import Exit, Kind
from trainyard.domain.state.worker_views import FormedGroups, WorkerReport

Formed = Sequence[tuple[int, int] | None]
HIDDEN = Exit(
    ago(5),
    0,
    "Completed",
    "",
    rank=1,
    kind=Kind.HIDDEN,
    headline="rank 1 exited with code 1: ValueError: boom",
    location="train.py:7 in load",
)


def act(scene: Scene, formed: Formed = (), attempt: int = 1) -> Plan:
    """Plan after the workers have reported these sizes and leaders. What is stored is not reported again."""
    reports = [
        WorkerReport(attempt, index, (), NOW, FormedGroups(*groups)) for index, groups in enumerate(formed) if groups
    ]
    made = plan(replace(scene.snapshot, reports=reports), NOW)
    assert made.status == stored(made.status)
    again = plan(replace(replace(scene, status=made.status).snapshot, reports=reports), NOW)
    assert [each for each in again.events if each.type == "Warning"] == []
    return made


def message(made: Plan, kind: C) -> str:
    found = made.status.condition(kind)
    return found.message if found and found.status == "True" else ""


def training(replicas: int = 2, each: int = 1, **fields: Any) -> Scene:
    return job(replicas, **{"template": SUPERVISED, "processesPerReplica": each, **fields}).running()


def hiding(scene: Scene, *indexes: int) -> Scene:
    for index in indexes:
        scene = scene.succeeded(index).pod(index, exit=HIDDEN)
    return scene


def test_hidden_failure_names_rank_code_and_fix() -> None:
    made = act(hiding(training(), 1))
    assert message(made, C.FAILURE_HIDDEN) == (
        "worker 1 (pod train-worker-1-1 on node1): rank 1 exited with code 1: ValueError: boom (at train.py:7 in load),"
        " but the command of its container exited with code 0; use `set -o pipefail` in bash before a pipeline, and `exec` or"
        " `&&` in place of `;`; with recovery.hiddenFailures: Fail such a worker fails"
    )
    assert [(e.type, e.reason) for e in made.events] == [("Warning", Reason.RANK_FAILURE_HIDDEN)]
    assert (made.status.attempt, made.status.restarts.failures) == (1, 0)


def test_hidden_failure_is_reported_when_the_job_completes() -> None:
    made = act(hiding(training(), 0, 1))
    assert made.status.phase is Phase.COMPLETE
    assert "; so did 1 other worker;" in message(made, C.FAILURE_HIDDEN)
    assert {e.reason for e in made.events} == {Reason.RANK_FAILURE_HIDDEN, Reason.WORKERS_SUCCEEDED}


def test_succeeded_workers_hide_nothing() -> None:
    assert act(training().succeeded(0, 1)).status.condition(C.FAILURE_HIDDEN) is None


def test_warnings_end_with_their_attempt() -> None:
    before = act(hiding(training(3), 1), [(1, 1)] * 3).status
    assert before.holds(C.FAILURE_HIDDEN)
    assert before.holds(C.GROUP_SPLIT)
    failed = replace(hiding(training(3), 1), status=before).failed(2, exit_code=1)
    after = act(failed, [(1, 1)] * 3).status
    assert (after.attempt, after.holds(C.FAILURE_HIDDEN), after.holds(C.GROUP_SPLIT)) == (2, False, False)


@pytest.mark.parametrize(
    ("scene", "formed", "words"),
    [
        pytest.param(training(2), [(1, 1), (1, 1)], "2 groups of 1 rank train beside each other", id="groups of one"),
        pytest.param(training(2), [(1, 1), (1, 1)], "expected was one group of 2 ranks", id="expected size"),
        pytest.param(training(2, 4), [(4, 1), (4, 1)], "2 x 4", id="a group for each worker"),
        pytest.param(training(4), [(1, 1), (1, 1), None, None], "2 groups of 1 rank", id="two have reported"),
        pytest.param(training(1, 2), [(2, 2)], "set processesPerReplica: 1", id="each process starts all ranks"),
        pytest.param(training(1, 2), [(1, 2)], "set processesPerReplica: 1", id="each process is alone"),
    ],
)
def test_split_groups_are_reported(scene: Scene, formed: Formed, words: str) -> None:
    made = act(scene, formed)
    assert words in message(made, C.GROUP_SPLIT)
    assert [(e.type, e.reason) for e in made.events if e.type == "Warning"] == [("Warning", Reason.GROUPS_SPLIT)]
    assert made.status.attempt == 1


@pytest.mark.parametrize(
    ("scene", "formed"),
    [
        pytest.param(training(2), [(2, 1), (2, 0)], id="one group"),
        pytest.param(training(2, 4), [(8, 1), (8, 0)], id="one group of several processes"),
        pytest.param(training(2), [], id="nothing is known"),
        pytest.param(training(2), [(1, 1), None], id="one has yet to form its group"),
        pytest.param(training(3), [(2, 1), (2, 0), (1, 1)], id="an evaluator beside the group"),
        pytest.param(training(3), [None, (2, 1), (2, 0)], id="a parameter server"),
        pytest.param(training(2, 4), [(4, 1), (4, 0)], id="fewer processes than asked for"),
        pytest.param(training(2, framework="none"), [(1, 1), (1, 1)], id="independent workers"),
        pytest.param(training(1), [(1, 1)], id="one process"),
        pytest.param(training(2), [(2, 1), (2, 0), (2, 1)], id="a worker that has yet to join"),
    ],
)
def test_healthy_jobs_are_not_warned(scene: Scene, formed: Formed) -> None:
    made = act(scene, formed)
    assert message(made, C.GROUP_SPLIT) == ""
    assert made.events == []


@pytest.mark.parametrize(("workers", "formed"), [(1, [(1, 1)]), (2, [(2, 1), (2, 0)])])
def test_one_process_in_each_worker_is_reported(workers: int, formed: Formed) -> None:
    """The command `pip install … && python train.py` runs once for all GPUs of a worker."""
    assert message(act(training(workers, 4), formed), C.GROUP_SPLIT) == ""
    ended = message(act(training(workers, 4).succeeded(*range(workers)), formed), C.GROUP_SPLIT)
    assert f"formed a group of {workers}; expected was one group of {workers * 4} ranks" in ended


def programs(scene: Scene, *counts: int | None, formed: FormedGroups | None = None) -> Plan:
    """Plan after each worker has reported how many programs of it have loaded torch."""
    reports = [WorkerReport(1, index, (), NOW, formed, None, count) for index, count in enumerate(counts)]
    return plan(replace(scene.snapshot, reports=reports), NOW)


def running_for(scene: Scene, minutes: int) -> Scene:
    return replace(scene, status=scene.status.evolve(running_time=ago(60 * minutes)))


@pytest.mark.parametrize("workers", [1, 2])
def test_one_program_without_a_group_is_reported(workers: int) -> None:
    """The command `prepare && python train.py` runs once for all GPUs of a worker, and never forms a group."""
    counts = [1] * workers
    early = programs(running_for(training(workers, 4), 9), *counts)
    assert (message(early, C.GROUP_SPLIT), early.requeue_after) == ("", 60)
    late = programs(running_for(training(workers, 4), 10), *counts)
    assert [(e.type, e.reason) for e in late.events if e.type == "Warning"] == [("Warning", Reason.GROUPS_SPLIT)]
    ended = programs(running_for(training(workers, 4).succeeded(*range(workers)), 1), *counts)
    for made in (late, ended):
        assert f"expected was one group of {workers * 4} ranks" in message(made, C.GROUP_SPLIT)
        assert "set processesPerReplica: 1" in message(made, C.GROUP_SPLIT)
    assert ended.status.phase is Phase.COMPLETE


@pytest.mark.parametrize(
    ("scene", "counts", "formed"),
    [
        pytest.param(training(2, 4), (1, None), None, id="one is not known"),
        pytest.param(training(2, 4), (1, 4), None, id="one has ranks"),
        pytest.param(training(1, 4), (4,), None, id="a launcher"),
        pytest.param(training(1, 1), (1,), None, id="one process on purpose"),
        pytest.param(training(1, 4), (1,), FormedGroups(4, 1), id="a group of its own processes"),
        pytest.param(training(1, 4, framework="none"), (1,), None, id="no framework"),
    ],
)
def test_other_programs_without_group_are_no_warning(
    scene: Scene, counts: Sequence[int | None], formed: FormedGroups | None
) -> None:
    for each in (running_for(scene, 20), running_for(scene, 20).succeeded(*range(len(counts)))):
        assert message(programs(each, *counts, formed=formed), C.GROUP_SPLIT) == ""


def test_reports_of_an_earlier_attempt_do_not_count() -> None:
    scene = job(2, template=SUPERVISED).running(attempt=2)
    assert act(scene, [(1, 1), (1, 1)], attempt=1).status.condition(C.GROUP_SPLIT) is None


def test_warning_ends_once_the_group_is_formed() -> None:
    split = replace(training(2), status=act(training(2), [(1, 1), (1, 1)]).status)
    found = act(split, [(2, 1), (2, 0)]).status.condition(C.GROUP_SPLIT)
    assert found is not None
    assert (found.status, found.reason) == ("False", Reason.GROUP_FORMED)


def test_completed_job_keeps_its_warning() -> None:
    made = act(training(2).succeeded(0, 1), [(1, 1), (1, 1)])
    assert (made.status.phase, made.status.holds(C.GROUP_SPLIT)) == (Phase.COMPLETE, True)


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("torchrun --standalone train.py", "start torchrun without --standalone"),
        ("python -m torch.distributed.run --nnodes=1 train.py", "start torchrun without --standalone"),
        (
            "accelerate launch train.py",
            "accelerate launch --num_machines 2 --num_processes 4 --machine_rank $NODE_RANK",
        ),
        ("fabric run --num-nodes=1 train.py", "without --num-nodes, --node-rank and"),
        ("python -m lightning.fabric.cli train.py", "--devices 2 --num-nodes $PET_NNODES"),
        ("tune run --standalone recipe.py --config a.yaml", "start tune run with --nproc_per_node 2"),
        ("python train.py", "call init_process_group without a rank"),
    ],
)
def test_advice_fits_the_command(command: str, advice: str) -> None:
    for words in (command.split(), ["sh", "-c", command]):
        template = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": words}]}}
        made = act(training(2, 2, template=template), [(2, 1), (2, 1)])
        assert advice in message(made, C.GROUP_SPLIT)


def test_jax_processes_that_compute_alone_are_reported() -> None:
    for scene, formed in (
        (training(2, framework="jax"), [(1, 1), (1, 1)]),
        (training(1, 2, framework="jax"), [(1, 2)]),
    ):
        assert "call jax.distributed.initialize() without arguments" in message(act(scene, formed), C.GROUP_SPLIT)
    joined = act(training(2, 2, framework="jax"), [(4, 1), (4, 0)])
    assert message(joined, C.GROUP_SPLIT) == ""


def test_advice_ignores_commands_of_sidecars() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "command": ["proxy"]}
    main = {"name": "main", "image": "trainer:1", "command": ["torchrun", "--standalone", "train.py"]}
    made = act(training(2, 2, template={"spec": {"containers": [main, sidecar]}}), [(2, 1), (2, 1)])
    assert "start torchrun without --standalone" in message(made, C.GROUP_SPLIT)
