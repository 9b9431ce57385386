import pytest

from trainyard_torch.checkpoint.lineage import JobAttempt
from trainyard_torch.process_info import ProcessInfo

LAUNCHED = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_a_process_by_itself() -> None:
    assert ProcessInfo.of({"LOCAL_RANK": "7", "RANK": ""}) == ProcessInfo()


def test_one_of_torchrun_and_one_of_the_agent() -> None:
    place = ProcessInfo.of(LAUNCHED)
    assert place == ProcessInfo(3, 4, 1, 2, launched=True)
    agent = {"TRAINYARD_PROGRESS_FILE": "/x", "TRAINYARD_JOB_UID": "uid", "TRAINYARD_ATTEMPT": "5"}
    assert ProcessInfo.of({**LAUNCHED, **agent}) == ProcessInfo(
        3, 4, 1, 2, launched=True, supervised=True, job_attempt=JobAttempt("uid", 5)
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"RANK": "four"}, "RANK must be a non-negative integer, not 'four'"),
        ({"RANK": "-1"}, "RANK must be a non-negative integer, not '-1'"),
        ({"RANK": "٣"}, "RANK must be a non-negative integer"),
        ({"RANK": "4"}, "RANK does not fit: RANK 4 of WORLD_SIZE 4"),
        ({"WORLD_SIZE": ""}, "RANK is set without WORLD_SIZE: set both, or neither"),
        ({"RANK": ""}, "WORLD_SIZE is set without RANK: set both, or neither"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE does not fit"),
        ({"WORLD_SIZE": "99999999999"}, "WORLD_SIZE does not fit"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK does not fit"),
        ({"LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE does not fit"),
        ({"TRAINYARD_ATTEMPT": "x"}, "TRAINYARD_ATTEMPT must be a non-negative integer"),
    ],
)
def test_variables_that_do_not_fit(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProcessInfo.of({**LAUNCHED, **wrong})
