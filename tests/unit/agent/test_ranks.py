"""The environment of each process, as torchrun would give it."""

import pytest

from trainyard_agent.ranks import Place, SettingError, environments, place, rank_variables

SET = {
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_REPLICAS": "3",
    "TRAINYARD_PROCESSES_PER_REPLICA": "2",
    "TRAINYARD_ATTEMPT": "4",
    "TRAINYARD_JOB_UID": "uid",
}


def test_worker_position_gives_its_ranks() -> None:
    assert place(SET) == Place(worker=1, workers=3, processes=2, attempt=4, run_id="uid-4")
    assert place(SET).ranks == [2, 3]


def test_each_rank_gets_torchrun_variables() -> None:
    first, second = environments(place(SET), {"PATH": "/bin", "RANK": "17"}).values()
    assert first.items() >= {"PATH": "/bin", "RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "6"}.items()
    assert second.items() >= {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}.items()
    assert second.items() >= {"TORCHELASTIC_RUN_ID": "uid-4", "TORCHELASTIC_RESTART_COUNT": "3"}.items()
    assert first["OMP_NUM_THREADS"] == "1"


def test_thread_count_is_kept_when_set() -> None:
    assert environments(place(SET), {"OMP_NUM_THREADS": "5"})[2]["OMP_NUM_THREADS"] == "5"
    assert "OMP_NUM_THREADS" not in environments(place({**SET, "TRAINYARD_PROCESSES_PER_REPLICA": "1"}), {})[1]


def test_further_variables_name_each_rank() -> None:
    kinds = ("rank", "world-size", "local-rank", "local-world-size", "worker", "workers")
    setting = ",".join(f"X_{kind}={kind}" for kind in kinds)
    first, second = environments(place(SET), {"TRAINYARD_RANK_VARIABLES": setting, "X_rank": "17"}).values()
    assert [first[f"X_{kind}"] for kind in kinds] == ["2", "6", "0", "2", "1", "3"]
    assert [second[f"X_{kind}"] for kind in kinds] == ["3", "6", "1", "2", "1", "3"]


def test_each_rank_gets_its_endpoint() -> None:
    endpoints = [f"train-worker-{worker}.train:{port}" for worker in range(3) for port in (12400, 12401)]
    given = {"TRAINYARD_RANK_VARIABLES": "OWN=endpoint", "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints)}
    assert [made["OWN"] for made in environments(place(SET), given).values()] == endpoints[2:4]
    for wrong in (",".join(endpoints[:5]), ""):
        found = environments(place(SET), {**given, "PADDLE_TRAINER_ENDPOINTS": wrong})
        assert not any("OWN" in made for made in found.values())


@pytest.mark.parametrize("wrong", ["JAX_PROCESS_ID", "JAX_PROCESS_ID=number", "=rank", "A=rank;B=rank"])
def test_invalid_further_variable_is_named(wrong: str) -> None:
    with pytest.raises(SettingError, match="TRAINYARD_RANK_VARIABLES must be NAME=KIND") as raised:
        rank_variables({"TRAINYARD_RANK_VARIABLES": f"A=rank,{wrong}"})
    assert repr(wrong) in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"TRAINYARD_REPLICAS": ""}, "TRAINYARD_REPLICAS must be an integer from 1 to 1000000, got ''"),
        ({"TRAINYARD_REPLICAS": "three"}, "TRAINYARD_REPLICAS"),
        ({"TRAINYARD_REPLICAS": "0"}, "TRAINYARD_REPLICAS"),
        ({"TRAINYARD_REPLICAS": "9" * 5000}, "TRAINYARD_REPLICAS"),
        ({"TRAINYARD_REPLICAS": "٣"}, "TRAINYARD_REPLICAS"),
        ({"TRAINYARD_REPLICA_INDEX": "3"}, "indexes start at 0"),
        ({"TRAINYARD_PROCESSES_PER_REPLICA": "1025"}, "from 1 to 1024"),
        ({"TRAINYARD_ATTEMPT": "-1"}, "TRAINYARD_ATTEMPT"),
    ],
)
def test_invalid_variable_is_named(wrong: dict[str, str], error: str) -> None:
    with pytest.raises(SettingError, match=error):
        place({**SET, **wrong})


def test_order_of_ranks_replaces_the_index() -> None:
    ordered = {**SET, "TRAINYARD_GROUP_RANK": "2"}
    assert place(ordered).ranks == [4, 5]
    first, _ = environments(place(ordered), ordered).values()
    assert first.items() >= {"RANK": "4", "GROUP_RANK": "2", "NODE_RANK": "2", "TRAINYARD_REPLICA_INDEX": "1"}.items()
    assert place({**SET, "TRAINYARD_GROUP_RANK": ""}).ranks == [2, 3]


@pytest.mark.parametrize("wrong", ["3", "-1", "x"])
def test_order_beyond_the_group_is_refused(wrong: str) -> None:
    with pytest.raises(SettingError, match="TRAINYARD_GROUP_RANK must be an integer from 0 to 2"):
        place({**SET, "TRAINYARD_GROUP_RANK": wrong})
