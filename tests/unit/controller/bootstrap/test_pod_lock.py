"""One process of a pod has its place, and it alone inherits."""

import subprocess
import sys
from uuid import uuid4

import pytest

from trainyard.controller.bootstrap.pod_lock import acquire_pod_lock

HOLD = """
import sys, time
from trainyard.controller.bootstrap.pod_lock import acquire_pod_lock
seat = acquire_pod_lock(*sys.argv[1:])
print(seat.identity, flush=True)
time.sleep(600)
"""


@pytest.fixture
def uid() -> str:
    return str(uuid4())


def test_whoever_has_the_place_inherits_from_those_before(uid: str) -> None:
    first = acquire_pod_lock("pod", uid)
    first.release()
    second = acquire_pod_lock("pod", uid)
    try:
        assert second.identity.startswith(f"pod_{uid}_")
        assert second.identity != first.identity
        assert second.inherits(first.identity)
        assert not second.inherits(f"pod_{uuid4()}_12345678"), "a pod of the same name, before or elsewhere"
        assert not second.inherits("pod_12345678")
        assert not second.inherits("")
    finally:
        second.release()


def test_a_second_process_of_the_pod_gets_a_name_that_nobody_inherits_from(
    uid: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = acquire_pod_lock("pod", uid)
    try:
        second = acquire_pod_lock("pod", uid)
        assert "cannot acquire the pod lock; waiting for lease expiry" in caplog.text
        assert not second.inherits(first.identity)
        assert not first.inherits(second.identity)
    finally:
        first.release()


def test_without_a_pod_there_is_nothing_to_inherit() -> None:
    first, second = acquire_pod_lock("laptop", None), acquire_pod_lock("laptop", None)
    assert first.identity != second.identity
    assert not second.inherits(first.identity)


def test_the_place_is_free_as_soon_as_its_process_is_dead(uid: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, "pod", uid], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert acquire_pod_lock("pod", uid).lock is None
    finally:
        process.kill()
        process.communicate()
    heir = acquire_pod_lock("pod", uid)
    assert heir.inherits(name)
    heir.release()
