from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pytest
from typing_extensions import override

from trainyard_torch.checkpoint.history import LATEST, History, StaleAttemptError, verify
from trainyard_torch.checkpoint.lineage import JobAttempt, Retention
from trainyard_torch.checkpoint.manifest import NAME, CorruptCheckpointError, File, Manifest, Name
from trainyard_torch.checkpoint.store import Store, StoreError


@pytest.fixture(params=["volume", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "volume":
        yield Store(str(tmp_path / "checkpoints"))
    else:
        yield Store("memory://checkpoints")
        fsspec.filesystem("memory").store.clear()


def write(store: Store, step: int, attempt: int = 1, **fields: Any) -> Manifest:
    """The files of a checkpoint, without its manifest."""
    name, files = Name(step, attempt), {}
    for path in ("__0_0.distcp", "part/__1_0.distcp"):
        store.write(f"{name}/{path}", f"{step} {path} of {attempt}".encode() * 100)
        files[path] = store.measure(f"{name}/{path}")
    assert all(files.values())
    return Manifest(step, attempt, 2, files={path: file for path, file in files.items() if file}, **fields)


def committed(store: Store, *steps: int, base: Name | None = None, job_attempt: JobAttempt | None = None) -> History:
    """What the next attempt has written."""
    history = History(store, job_attempt)
    history.begin()
    history.claim(base)
    for step in steps:
        history.commit(write(store, step, history.attempt))
    return history


class Found(NamedTuple):
    manifest: Manifest | None
    passed_over: list[tuple[Name, str]]


def find(history: History) -> Found:
    """As the processes of a training do it together: the best that is whole."""
    passed_over = []
    for name in history.usable():
        try:
            manifest = history.listed(name)
            verify(history._store, manifest, manifest.files)
        except CorruptCheckpointError as error:
            passed_over.append((name, str(error)))
        else:
            return Found(manifest, passed_over)
    return Found(None, passed_over)


def step_of(history: History) -> int | None:
    found = find(history).manifest
    return found.step if found else None


def test_nothing_is_there_yet(store: Store) -> None:
    history = committed(store)
    assert (history.attempt, find(history).manifest, history.tidy(Retention())) == (1, None, [])


def test_the_newest_that_is_whole(store: Store) -> None:
    committed(store, 10, 20, 30)
    later = History(store)
    assert step_of(later) == 30
    assert (store.read(LATEST) or b"").decode().strip() == str(Name(30, 1))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda _: None, "__0_0.distcp is missing"),
        (lambda old: old[:-1], "bytes instead of"),
        (lambda _: b"", "has 0 bytes instead of"),
        (lambda old: old[:5] + b"!" + old[6:], "its checksum is another one"),
    ],
    ids=["missing", "truncated", "empty", "changed"],
)
def test_broken_checkpoint_is_skipped_and_reported(store: Store, broken: Any, message: str) -> None:
    committed(store, 10, 20)
    path = f"{Name(20, 1)}/__0_0.distcp"
    content = broken(store.read(path))
    store.remove(path) if content is None else store.write(path, content)
    found = find(History(store))
    assert found.manifest
    assert found.manifest.step == 10
    ((name, why),) = found.passed_over
    assert (name, message in why) == (Name(20, 1), True)


def test_foreign_files_are_ignored(store: Store) -> None:
    committed(store, 10)
    for path in (
        "step-000000000099-000001/x",
        f"step-000000000098-000001/{NAME}",
        "notes.txt",
        "attempts/old.json",
        "step-1/y",
    ):
        store.write(path, b"{}")
    history = History(store)
    assert step_of(history) == 10
    assert [str(name) for name, _ in find(history).passed_over] == [
        "step-000000000099-000001",
        "step-000000000098-000001",
    ]


def test_none_is_whole(store: Store) -> None:
    committed(store, 10)
    store.write(f"{Name(10, 1)}/{NAME}", b"{")
    found = find(History(store))
    assert (found.manifest, len(found.passed_over)) == (None, 1)


def test_who_was_left_behind_commits_nothing(store: Store) -> None:
    old = committed(store, 10)
    ready = write(store, 20)
    committed(store, 15, base=Name(10, 1))
    for act in (lambda: old.commit(ready), lambda: old.tidy(Retention(last=1))):
        with pytest.raises(StaleAttemptError, match="number 2 there, and this is number 1"):
            act()
    assert step_of(History(store)) == 15


def test_commit_between_look_and_write_is_ignored(store: Store) -> None:
    old = committed(store, 10)
    committed(store, base=Name(10, 1))
    old._check = lambda: None  # type: ignore[method-assign]  # the look was a moment before the claim
    old.commit(write(store, 20))
    assert step_of(History(store)) == 10


def test_next_starts_over_if_nothing_else_exists(store: Store) -> None:
    """None else would ever begin: there is a pointer, and nothing that it points to counts."""
    old = committed(store)
    committed(store)
    old._check = lambda: None  # type: ignore[method-assign]  # as above
    old.commit(write(store, 20))
    late = History(store)
    late.begin()
    assert (late.usable(), late.has_any()) == ([], False)
    store.write(LATEST, b"what is this?")
    assert late.has_any(), "somebody has written it"


def test_claim_followed_by_no_number_is_named(store: Store) -> None:
    committed(store, 10)
    store.write("attempts/999999-abcdef01.json", b"{}")
    with pytest.raises(StoreError, match=r"attempts has a file of attempt 999999, .* remove it"):
        History(store).begin()


@pytest.mark.parametrize(
    "text", [b'{"attempt": 1e999, "time": 0, "base": null}', b"[" * 100_000, b'{"time": 1' + b"0" * 400 + b"}"]
)
def test_unreadable_claims_cost_nothing(store: Store, text: bytes) -> None:
    committed(store, 10)
    store.write("attempts/000002-abcdef01.json", text)
    assert step_of(History(store)) == 10


def test_earlier_attempt_cannot_start_after_a_later_one(store: Store) -> None:
    slow = History(store, JobAttempt("job", 1))
    committed(store, 10, job_attempt=JobAttempt("job", 2))
    with pytest.raises(StaleAttemptError, match="attempt 2 of this job has started, and this is attempt 1"):
        slow.begin()
    committed(store, 20, base=Name(10, 1), job_attempt=JobAttempt("the next job", 1))
    assert step_of(History(store)) == 20


def test_simultaneous_starts_have_one_later_attempt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = History(store), History(store)
    written: list[str] = []
    write_file = Store.write

    def between(self: Store, path: str, content: bytes) -> None:
        written.append(path)
        if len(written) == 1:
            other.begin()
        write_file(self, path, content)

    monkeypatch.setattr(Store, "write", between)
    one.begin()
    assert [path[:15] for path in written] == ["attempts/000001", "attempts/000001", "attempts/000002"]
    one.commit(write(store, 10, one.attempt))
    with pytest.raises(StaleAttemptError):
        other.commit(write(store, 10, other.attempt))


def test_constant_new_starts_cause_no_endless_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file = Store.write

    def beside(self: Store, path: str, content: bytes) -> None:
        write_file(self, path, content)
        write_file(self, f"attempts/{path.split('/')[1][:6]}-00000000.json", content)

    monkeypatch.setattr(Store, "write", beside)
    with pytest.raises(StaleAttemptError, match="give each training its own folder"):
        History(store).begin()


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("cause", ["a flipped bit", "a commit that came late"])
def test_skipped_checkpoint_is_not_kept_over_good_ones(store: Store, last: int, cause: str) -> None:
    old = committed(store, 10, 20, 30)
    if cause == "a flipped bit":
        store.write(f"{Name(30, 1)}/__0_0.distcp", b"?")
    else:
        old._check = lambda: None  # type: ignore[method-assign]  # the look was a moment before the claim
        old.commit(write(store, 40))
    new = History(store)
    new.begin()
    new.claim(Name(20, 1))
    for step in (22, 24, 26):
        new.commit(write(store, step, new.attempt))
        new.tidy(Retention(last=last))
        assert step_of(History(store)) == step
    assert len([name for name in store.folders() if name.endswith("-000002")]) == last


def test_stale_attempt_does_not_disturb_a_reader(store: Store) -> None:
    old = committed(store, 10, 20)
    new = History(store)
    new.begin()
    for act in (lambda: old.commit(write(store, 30)), lambda: old.tidy(Retention(last=1))):
        with pytest.raises(StaleAttemptError):
            act()
    assert step_of(new) == 20
    new.claim(Name(20, 1))
    assert History(store).claims()[1].base == Name(20, 1)
    assert step_of(old) == 20, "a claim is read again until it says its base"


def test_torn_claim_still_blocks_earlier_attempts(store: Store) -> None:
    old = committed(store, 10)
    store.write("attempts/000002-0123abcd.json", b'{"ba')
    with pytest.raises(StaleAttemptError):
        old.commit(write(store, 20))
    assert step_of(History(store)) == 10


def test_what_is_kept_and_what_goes(store: Store) -> None:
    history = committed(store, 10, 20, 30)
    write(store, 25)
    write(store, 35)
    assert history.tidy(Retention(last=2)) == [Name(10, 1), Name(25, 1)]
    assert sorted(store.folders()) == ["attempts", str(Name(20, 1)), str(Name(30, 1)), str(Name(35, 1))]
    assert step_of(History(store)) == 30


def test_the_best_stays(store: Store) -> None:
    history = History(store)
    history.begin()
    history.claim(None)
    for step, loss in ((10, 0.1), (20, 0.5), (30, 0.4)):
        history.commit(write(store, step, metrics={"loss": loss}))
    assert history.tidy(Retention(last=1, best=1, metric="loss")) == [Name(20, 1)]


class Dying(Store):
    """A process that is killed at its n-th change of the store."""

    left = 0

    @override
    def write(self, path: str, content: bytes) -> None:
        self._live()
        super().write(path, content)

    @override
    def remove(self, path: str) -> None:
        self._live()
        super().remove(path)

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_newest_commit_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    for moment in range(200):
        folder = tmp_path / str(moment)
        dying = Dying(str(folder))
        dying.left = moment
        done: list[int] = []
        try:
            history = History(dying)
            history.begin()
            history.claim(None)
            for step in (10, 20, 30, 40):
                history.commit(write(dying, step))
                done.append(step)
                history.tidy(Retention(last=2))
        except KeyboardInterrupt:
            pass
        found = step_of(History(Store(str(folder))))
        # The last commit may have come to its end without a word of it.
        assert found in {max(done, default=None), max(done, default=0) + 10}
        if len(done) == 4 and dying.left > 0:
            break
    else:
        pytest.fail("it was never left to its end")
    assert moment > 20


def test_full_or_unwritable_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = committed(Store(str(tmp_path)), 10)
    ready = write(Store(str(tmp_path)), 20)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match=r"cannot write .*step-000000000020-000001.*No space left on device"):
        history.commit(ready)
    monkeypatch.undo()
    assert step_of(History(Store(str(tmp_path)))) == 10
    assert not [*tmp_path.rglob("*.partial-*")]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nothing://bucket/x", "Protocol not known: nothing"),
        ("", "the path or URL of the folder is empty"),
        (" ", "the path or URL of the folder is empty"),
        ("s3:/bucket/x", "neither a path nor a URL"),
        ("s3:x", "two slashes"),
    ],
)
def test_a_store_that_there_is_not(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Store(url)


def test_a_look_at_the_sizes_reads_no_file(store: Store) -> None:
    committed(store, 10)
    path = f"{Name(10, 1)}/__0_0.distcp"
    store.write(path, b"?" * len(store.read(path) or b""))
    assert History(store).listed(Name(10, 1)).step == 10


def test_stream_is_stored_whole_or_not_at_all(store: Store) -> None:
    with store.writing("a/b") as stream:
        stream.write(b"abc")
        stream.write(b"def")
    with pytest.raises(StoreError, match=r"cannot write .*a/c: .*not 'str'"), store.writing("a/c") as stream:
        stream.writelines([b"abc", "def"])  # type: ignore[list-item]  # that is it
    assert (store.files("a"), store.read("a/b")) == (["b"], b"abcdef")
    store.rename("a/b", "a/d")
    with store.reading("a/d") as stream:
        stream.seek(2)
        assert (store.files("a"), stream.read(3)) == (["d"], b"cde")


def test_verified_contents_are_kept_on_request(store: Store) -> None:
    manifest = write(store, 1)
    assert verify(store, manifest, manifest.files) == {}
    contents = verify(store, manifest, manifest.files, keep=True)
    assert {path: bytes(content) for path, content in contents.items()} == {
        path: store.read(f"{manifest.name}/{path}") for path in manifest.files
    }


@pytest.mark.parametrize("size", [3, 10**15])
def test_no_memory_for_a_size_that_is_wrong(store: Store, size: int) -> None:
    manifest = write(store, 1)
    path, file = next(iter(manifest.files.items()))
    wrong = manifest.of({path: File(size, file.sha256)})
    with pytest.raises(CorruptCheckpointError, match="was changed after it was written"):
        verify(store, wrong, [path], keep=True)


def test_files_of_a_checkpoint_are_measured(store: Store) -> None:
    store.write("a/b", b"abc")
    assert store.measure("a/b") == File(3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert (store.measure("a/c"), store.size("a/c"), store.read("a/c")) == (None, None, None)
    assert (store.folders("a"), store.files("a"), store.files("nowhere")) == ([], ["b"], [])
