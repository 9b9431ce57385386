"""The store reaches the server's state, in whatever order and however often events arrive."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings, strategies as st

from trainyard.kube import store as store_module
from trainyard.kube.store import Store


@dataclass(frozen=True, slots=True)
class Item:
    uid: str
    resource_version: int
    owner: str | None = "a"


def store(*items: Item, version: int = 0) -> Store[Item, str]:
    made: Store[Item, str] = Store(lambda item: item.owner)
    made.replace(items, version)
    return made


def test_objects_by_owner_and_uid() -> None:
    held = store(Item("1", 5), Item("2", 6), Item("3", 7, "b"), version=8)
    assert held.of("a") == (Item("1", 5), Item("2", 6))
    assert held.of("nobody") == ()
    assert held.get("3") == Item("3", 7, "b")
    assert sorted(held.keys()) == ["a", "b"]


def test_knows_current_and_older_versions() -> None:
    held = store(Item("1", 5), version=5)
    assert held.knows("1", 5)
    assert held.knows("1", 4)
    assert not held.knows("1", 6)
    assert not held.knows("2", 1)


def test_object_without_owner_is_stored() -> None:
    held = store()
    assert held.apply(Item("1", 5, None)) == set()
    assert held.get("1") is not None
    assert held.keys() == ()
    assert held.remove("1", 6) == set()
    assert len(held) == 0


def test_change_of_owner_returns_both_keys() -> None:
    held = store(Item("1", 5), version=5)
    assert held.apply(Item("1", 6, "b")) == {"a", "b"}
    assert held.of("a") == ()
    assert held.of("b") == (Item("1", 6, "b"),)


def test_repeated_and_older_events_change_nothing() -> None:
    held = store(Item("1", 5), version=5)
    assert held.apply(Item("1", 7)) == {"a"}
    assert held.apply(Item("1", 7)) == set()
    assert held.apply(Item("1", 6)) == set()
    assert held.get("1") == Item("1", 7)


def test_late_event_does_not_revive_deleted_object() -> None:
    held = store(Item("1", 5), version=5)
    assert held.remove("1", 8) == {"a"}
    assert held.apply(Item("1", 7)) == set()
    held.observe(20)
    assert held.apply(Item("1", 7)) == set()
    assert held.record_found(Item("1", 7)) == set(), "an answer can be late, too"
    assert len(held) == 0


def test_found_object_is_stored_without_events() -> None:
    held = store(version=20)
    assert held.apply(Item("1", 7)) == set()
    assert held.record_found(Item("1", 7)) == {"a"}
    assert held.record_found(Item("1", 6)) == set()
    assert held.get("1") == Item("1", 7)
    assert held.replace([], 30) == {"a"}
    assert held.record_found(Item("1", 7)) == set(), "a list has delivered that it went"


def test_created_object_is_stored_without_events() -> None:
    held = store(version=20)
    held.record_created(Item("1", 21))
    assert (held.of("a"), held.seen) == ((Item("1", 21),), 20), "what was written before it may still be on its way"
    assert held.apply(Item("2", 22)) == {"a"}
    assert held.of("a") == (Item("1", 21), Item("2", 22))


def test_first_event_of_created_object_is_a_change() -> None:
    held = store(version=20)
    held.record_created(Item("1", 21))
    assert [held.apply(Item("1", 21)) for _ in range(2)] == [{"a"}, set()]
    held.record_created(Item("1", 21))
    assert held.apply(Item("1", 21)) == set(), "it was delivered of before the answer came"


@pytest.mark.parametrize("version", [25, None])
def test_deletion_before_the_create_answer_wins(version: int | None) -> None:
    held = store(version=20)
    held.apply(Item("1", 21))
    held.remove("1", 25) if version else held.replace([], 25)
    held.record_created(Item("1", 21))
    assert held.of("a") == ()


def test_remembered_deletions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_REMEMBERED_DELETIONS", 2)
    held = store()
    for uid in ("1", "2", "3"):
        held.remove(uid, int(uid))
    held.observe(2)
    assert held._deleted == {"3": 3}


def test_late_deletion_keeps_newer_object() -> None:
    held = store(Item("1", 5), version=5)
    held.remove("1", 6)
    assert held.apply(Item("1", 7)) == {"a"}
    assert held.remove("1", 6) == set()
    assert held.get("1") == Item("1", 7)


def test_list_drops_missing_objects() -> None:
    held = store(Item("1", 5), Item("2", 6, "b"), version=6)
    assert held.replace([Item("1", 5)], 9) == {"b"}
    assert held.of("b") == ()
    assert held.keys() == ("a",)


def test_unchanged_list_returns_no_keys() -> None:
    held = store(Item("1", 5), Item("2", 6, "b"), version=6)
    assert held.replace([Item("1", 5), Item("2", 6, "b")], 9) == set()


def test_list_from_lagging_server_is_ignored() -> None:
    held = store(Item("1", 5), Item("2", 6), version=6)
    held.apply(Item("1", 9))
    held.apply(Item("3", 10))
    held.remove("2", 11)
    assert held.replace([Item("1", 5), Item("2", 6)], 7) == set()
    assert set(held.of("a")) == {Item("1", 9), Item("3", 10)}
    assert held.seen == 11


def test_seen_is_the_newest_version() -> None:
    held = store(version=4)
    assert held.seen == 4
    held.apply(Item("1", 7))
    held.apply(Item("1", 6))
    assert held.seen == 7
    held.observe(9)
    assert held.seen == 9
    held.remove("1", 12)
    assert held.seen == 12
    held.remove("1")
    assert held.seen == 12


UIDS = st.sampled_from("12345")
STEPS = st.lists(st.tuples(UIDS, st.sampled_from(["write", "write", "delete"]), st.sampled_from("ab")), max_size=25)


@dataclass(frozen=True, slots=True)
class Step:
    at: int
    item: Item
    deletes: bool


def history(steps: list[tuple[str, str, str]]) -> list[Step]:
    """What a server would have done: a version a step, and nothing deleted twice."""
    versions = itertools.count(10)
    alive: dict[str, Item] = {}
    made = []
    for uid, what, owner in steps:
        at = next(versions)
        if what == "delete" and uid in alive:
            made.append(Step(at, alive.pop(uid), deletes=True))
        else:
            alive[uid] = Item(uid, at, owner)
            made.append(Step(at, alive[uid], deletes=False))
    return made


def state(steps: list[Step]) -> dict[str, Item]:
    alive: dict[str, Item] = {}
    for step in steps:
        if step.deletes:
            del alive[step.item.uid]
        else:
            alive[step.item.uid] = step.item
    return alive


def deliver(held: Store[Item, str], step: Step) -> set[str]:
    return held.remove(step.item.uid, step.at) if step.deletes else held.apply(step.item)


def content(held: Store[Item, str]) -> dict[str, Item]:
    by_key = {item.uid: item for key in "ab" for item in held.of(key)}
    by_uid = {uid: item for uid in "12345" if (item := held.get(uid)) is not None}
    assert by_key == by_uid
    assert len(held) == len(by_uid)
    return by_uid


@settings(deadline=None)
@given(STEPS, st.data())
def test_any_event_order_reaches_the_server_state(steps: list[tuple[str, str, str]], data: st.DataObject) -> None:
    made = history(steps)
    events = data.draw(
        st.permutations(made + (data.draw(st.lists(st.sampled_from(made), max_size=10)) if made else []))
    )
    held = store()
    for step in events:
        before = content(held)
        changed = deliver(held, step)
        after = content(held)
        owners = {
            item.owner
            for uid in before.keys() | after.keys()
            if before.get(uid) != after.get(uid)
            for item in (before.get(uid), after.get(uid))
            if item is not None
        }
        assert changed == owners, "exactly those are delivered whose objects are others now"
    assert content(held) == state(made)


@settings(deadline=None)
@given(STEPS, st.data())
def test_lists_and_bookmarks_do_not_change_the_result(steps: list[tuple[str, str, str]], data: st.DataObject) -> None:
    """Events in order, with repeats, bookmarks, and gaps that a list closes."""
    made = history(steps)
    held = store()
    delivered = 0
    for position, step in enumerate(made, start=1):
        lost = data.draw(st.booleans())
        if not lost and delivered == position - 1:
            deliver(held, step)
            delivered = position
        match data.draw(st.sampled_from(["", "repeat", "bookmark", "list", "old list"])):
            case "repeat" if delivered:
                deliver(held, data.draw(st.sampled_from(made[:delivered])))
            case "bookmark" if delivered:
                held.observe(made[delivered - 1].at)
            case "list":
                held.replace(state(made[:position]).values(), step.at)
                delivered = position
            case "old list":
                # Served by an API server that lags behind: it may say nothing new, but takes nothing back.
                behind = data.draw(st.integers(0, delivered))
                held.replace(state(made[:behind]).values(), made[behind - 1].at if behind else 1)
            case _:
                pass
        assert content(held) == state(made[:delivered])
