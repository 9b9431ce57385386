"""Only one process of a pod gets the lock, and inherits the Lease."""

import subprocess
import sys
from uuid import uuid4

import pytest

from trainyard.controller.bootstrap.pod_lock import acquire_pod_lock

HOLD = """
import sys, time
from trainyard.controller.bootstrap.pod_lock import acquire_pod_lock
lock = acquire_pod_lock(*sys.argv[1:])
print(lock.identity, flush=True)
time.sleep(600)
"""


@pytest.fixture
def uid() -> str:
    return str(uuid4())


def test_lock_holder_inherits_the_lease(uid: str) -> None:
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


def test_second_process_inherits_nothing(uid: str, caplog: pytest.LogCaptureFixture) -> None:
    first = acquire_pod_lock("pod", uid)
    try:
        second = acquire_pod_lock("pod", uid)
        assert "cannot acquire the pod lock; waiting for lease expiry" in caplog.text
        assert not second.inherits(first.identity)
        assert not first.inherits(second.identity)
    finally:
        first.release()


def test_no_inheritance_without_a_pod() -> None:
    first, second = acquire_pod_lock("laptop", None), acquire_pod_lock("laptop", None)
    assert first.identity != second.identity
    assert not second.inherits(first.identity)


def test_killed_process_releases_the_lock(uid: str) -> None:
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
