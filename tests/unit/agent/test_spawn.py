"""Start of programs, also by a Python built against a glibc before 2.26: its posix_spawn has no sessions."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard_agent.spawn import SIGNALS, spawn

LOOK = """
read line; echo "$? $RANK" >&2
cut -d " " -f 6 /proc/$$/stat >&2; echo $$ >&2
grep SigIgn /proc/$$/status >&2
"""
SPAWN = os.posix_spawnp


def without_sessions(*words: object, setsid: bool = False, **others: object) -> int:
    """Raise what CPython raises without support for sessions."""
    if setsid:
        raise NotImplementedError("posix_spawnp: setsid unavailable on this platform")
    return SPAWN(*words, **others)  # type: ignore[arg-type]


@pytest.fixture(params=["with", "without"])
def _sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "without":
        monkeypatch.setattr(os, "posix_spawnp", without_sessions)
    # The agent sets them too: a process in the background of a shell ignores some of them.
    before = [(number, signal.signal(number, lambda *_: None)) for number in (*SIGNALS, signal.SIGCHLD)]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.usefixtures("_sessions")
def test_program_starts_in_a_new_session() -> None:
    ours, theirs = os.pipe()
    pid = spawn(["sh", "-c", LOOK], {**os.environ, "RANK": "3"}, theirs)
    os.close(theirs)
    with os.fdopen(ours) as output:
        first, session, own, ignored = output.read().splitlines()
    assert (first, session, own) == ("1 3", f"{pid}", f"{pid}")
    assert not int(ignored.split()[1], 16) & sum(1 << each - 1 for each in (*SIGNALS, signal.SIGPIPE, signal.SIGCHLD))
    assert os.waitpid(pid, 0) == (pid, 0)


@pytest.mark.usefixtures("_sessions")
def test_failed_start_raises_its_cause(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for words, why in ((["no-such-program"], errno.ENOENT), ([str(tmp_path / "plain")], errno.EACCES)):
        with pytest.raises(OSError, match=os.strerror(why)):
            spawn(words, dict(os.environ), 2)


@pytest.mark.usefixtures("_sessions")
def test_outputs_are_those_that_are_given(tmp_path: Path) -> None:
    files = [tmp_path / "output", tmp_path / "errors"]
    output, errors = (os.open(file, os.O_WRONLY | os.O_CREAT) for file in files)
    pid = spawn(["sh", "-c", "echo ours; echo theirs >&2"], dict(os.environ), errors, output=output)
    assert os.waitpid(pid, 0) == (pid, 0)
    os.close(output)
    os.close(errors)
    assert [file.read_text() for file in files] == ["ours\n", "theirs\n"]
