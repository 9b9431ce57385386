import pytest

from trainyard_agent import recorder as agent
from trainyard_torch.monitoring.flight_recorder import flight_recorder


def test_enabled_without_the_agent_as_with_it() -> None:
    assert flight_recorder({}) == agent.defaults({}) != {}


def test_with_the_agent_nothing_is_missing() -> None:
    assert flight_recorder({**agent.defaults({}), "TORCH_FR_DUMP_TEMP_FILE": "/x/rank_"}) == {}


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_what_is_set_by_hand_stays(name: str) -> None:
    assert flight_recorder({name: "0"}) == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def test_the_folder_is_the_one_that_is_named() -> None:
    named = {"TRAINYARD_FLIGHT_RECORDER": "/checkpoints/"}
    assert {flight_recorder(named)[name] for name in agent.FILE_VARIABLES} == {"/checkpoints/rank_"}
    by_hand = {**named, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/own"}
    assert not set(flight_recorder(by_hand)) & set(agent.FILE_VARIABLES)
