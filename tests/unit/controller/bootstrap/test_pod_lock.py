"""One process of a pod has its place, and it alone inherits."""

import subprocess
import sys
from uuid import uuid4

import pytest

from trainyard.controller.bootstrap.pod_lock import take_seat

HOLD = """
import sys, time
from trainyard.controller.bootstrap.pod_lock import take_seat
seat = take_seat(*sys.argv[1:])
print(seat.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def uid() -> str:
    return str(uuid4())


def test_whoever_has_the_place_inherits_from_those_before(uid: str) -> None:
    first = take_seat("pod", uid)
    first.leave()
    second = take_seat("pod", uid)
    try:
        assert second.name.startswith(f"pod_{uid}_")
        assert second.name != first.name
        assert second.inherits(first.name)
        assert not second.inherits(f"pod_{uuid4()}_12345678"), "a pod of the same name, before or elsewhere"
        assert not second.inherits("pod_12345678")
        assert not second.inherits("")
    finally:
        second.leave()


def test_a_second_process_of_the_pod_gets_a_name_that_nobody_inherits_from(
    uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = take_seat("pod", uid)
    try:
        second = take_seat("pod", uid)
        assert "this pod's place in the election is not to be had" in caplog.text
        assert not second.inherits(first.name)
        assert not first.inherits(second.name)
    finally:
        first.leave()


def test_without_a_pod_there_is_nothing_to_inherit() -> None:
    first, second = take_seat("laptop", None), take_seat("laptop", None)
    assert first.name != second.name
    assert not second.inherits(first.name)


def test_the_place_is_free_as_soon_as_its_process_is_dead(uid: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, "pod", uid], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert take_seat("pod", uid).held is None
    finally:
        process.kill()
        process.communicate()
    heir = take_seat("pod", uid)
    assert heir.inherits(name)
    heir.leave()
