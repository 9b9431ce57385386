import pytest

from trainyard_agent import recorder as agent
from trainyard_torch.monitoring.flight_recorder import flight_recorder

OLD, NEW = "2.8.1", "2.11.0+cu130"


@pytest.mark.parametrize(
    ("release", "name"),
    [(OLD, "TORCH_NCCL_TRACE_BUFFER_SIZE"), (NEW, "TORCH_FR_BUFFER_SIZE"), ("2.9", "TORCH_FR_BUFFER_SIZE")],
)
def test_each_release_gets_the_name_that_it_knows(release: str, name: str) -> None:
    set_by_agent = agent.defaults({})
    assert flight_recorder({}, release) == {each: set_by_agent[each] for each in (name, "TORCH_NCCL_DUMP_ON_TIMEOUT")}


def test_with_the_agent_nothing_is_missing() -> None:
    assert flight_recorder({**agent.defaults({}), "TORCH_FR_DUMP_TEMP_FILE": "/x/rank_"}, NEW) == {}


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_what_is_set_by_hand_stays(name: str) -> None:
    assert flight_recorder({name: "0"}, NEW) == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def test_the_folder_is_the_one_that_is_named() -> None:
    named = {"TRAINYARD_FLIGHT_RECORDER": "/checkpoints/"}
    new, old = agent.FILE_VARIABLES
    assert (flight_recorder(named, NEW)[new], flight_recorder(named, OLD)[old]) == ("/checkpoints/rank_",) * 2
    by_hand = {**named, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/own"}
    assert not set(flight_recorder(by_hand, NEW)) & set(agent.FILE_VARIABLES)
