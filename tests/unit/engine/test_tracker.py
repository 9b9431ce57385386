import pytest

from trainyard.engine.tracker import WriteTracker


def no(resource: str, uid: str) -> bool:
    return False


def yes(resource: str, uid: str) -> bool:
    return True


def test_owner_without_writes_is_ready() -> None:
    assert WriteTracker[str]().ready("a", {}, no)


@pytest.mark.parametrize(("seen", "ready"), [(6, False), (7, True), (8, True)])
def test_a_write_is_waited_for(seen: int, *, ready: bool) -> None:
    tracker = WriteTracker[str]()
    tracker.wrote("a", "pods", 7)
    tracker.wrote("a", "pods", 5)
    assert tracker.ready("a", {"pods": seen}, no) is ready


def test_each_resource_has_versions_of_its_own() -> None:
    tracker = WriteTracker[str]()
    tracker.wrote("a", "pods", 7)
    tracker.wrote("a", "trainingjobs", 9)
    assert not tracker.ready("a", {"pods": 9, "trainingjobs": 8}, no)
    assert tracker.ready("a", {"pods": 9, "trainingjobs": 9}, no)
    assert tracker.ready("a", {"pods": 0, "trainingjobs": 0}, no), "what has been seen once is not waited for again"


def test_resource_without_cache_is_not_awaited() -> None:
    tracker = WriteTracker[str]()
    tracker.wrote("a", "services", 7)
    assert tracker.ready("a", {"pods": 1}, no)


def test_a_deletion_is_waited_for_by_uid() -> None:
    tracker = WriteTracker[str]()
    tracker.deleted("a", "pods", "uid-1")
    tracker.deleted("a", "pods", "uid-2")
    assert not tracker.ready("a", {"pods": 99}, no)
    assert not tracker.ready("a", {"pods": 99}, lambda _, uid: uid == "uid-1")
    assert tracker.ready("a", {"pods": 99}, lambda _, uid: uid == "uid-2")
    assert tracker.ready("a", {"pods": 99}, no)


def test_owners_do_not_wait_for_each_other() -> None:
    tracker = WriteTracker[str]()
    tracker.wrote("a", "pods", 7)
    assert tracker.ready("b", {"pods": 1}, no)
    assert not tracker.ready("a", {"pods": 1}, yes)


def test_deleted_owner_is_forgotten() -> None:
    tracker = WriteTracker[str]()
    tracker.wrote("a", "pods", 7)
    tracker.deleted("a", "pods", "uid-1")
    tracker.forget("a")
    tracker.forget("a")
    assert tracker.ready("a", {"pods": 1}, no)
