import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard_torch.monitoring.profile_request import SIGNAL, ProfileRequest, ProfileRequests, parse


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 2
        return self.now


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = signal.getsignal(SIGNAL)
    yield
    signal.signal(SIGNAL, before)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id=1", ProfileRequest(3)),
        ("steps=5", ProfileRequest(5)),
        ("ranks=0,12 steps=1000 id=now", ProfileRequest(1000, frozenset({0, 12}))),
        ("id=2026-11-23T05:00:00Z\n", ProfileRequest(3)),
    ],
)
def test_what_is_asked_for(text: str, expected: ProfileRequest) -> None:
    assert parse(text, 3) == expected


@pytest.mark.parametrize(
    "text", ["5", "steps=0", "steps=1001", "steps=-1", "steps=²", "ranks=", "ranks=0,", "ranks=a", "step=3"]
)
def test_what_is_not_understood(text: str) -> None:
    with pytest.raises(ValueError, match="is not valid: a request consists of"):
        parse(text, 3)


def test_each_new_file_content_is_a_request(tmp_path: Path) -> None:
    file = tmp_path / "profile"
    file.write_text("steps=9")
    requests = ProfileRequests(3, file, Clock())
    assert requests.take() is None, "an attempt before this one has seen it"
    file.write_text("steps=5 id=2")
    assert [requests.take(), requests.take()] == [ProfileRequest(5), None]
    (tmp_path / "new").write_text("steps=5 id=2")
    (tmp_path / "new").replace(file)
    assert requests.take() is None, "another annotation has changed"
    file.unlink()
    assert requests.take() is None
    file.write_text("id=3")
    assert requests.take() == ProfileRequest(3)


def test_a_file_that_is_made_later_asks(tmp_path: Path) -> None:
    requests = ProfileRequests(3, tmp_path / "folder/profile", Clock())
    assert requests.take() is None
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/profile").write_text("ranks=1")
    assert requests.take() == ProfileRequest(3, frozenset({1}))


def test_a_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    times = iter([0.0, 0.5, 1.0])
    requests = ProfileRequests(3, tmp_path / "profile", lambda: next(times))
    (tmp_path / "profile").write_text("id=1")
    assert [requests.take(), requests.take()] == [None, ProfileRequest(3)]


def test_nonsense_in_a_file_is_only_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    requests = ProfileRequests(3, tmp_path / "profile", Clock())
    (tmp_path / "profile").write_bytes(b"\xff" * 5000)
    assert [requests.take(), requests.take()] == [None, None]
    (tmp_path / "profile").unlink()
    os.mkfifo(tmp_path / "profile")
    assert requests.take() is None, "no process writes into it, and none waits"
    (message,) = caplog.messages
    assert "ignored the profile request" in message


def test_a_signal_asks() -> None:
    signal.signal(SIGNAL, signal.SIG_DFL)
    requests = ProfileRequests(4)
    requests.listen()
    for _ in range(3):
        os.kill(os.getpid(), SIGNAL)
    assert [requests.take(), requests.take()] == [ProfileRequest(4), None], "in the meantime several are one"
    requests.close()
    os.kill(os.getpid(), SIGNAL)
    assert requests.take() is None, "it does not end the process either"
    again = ProfileRequests(4)
    again.listen()
    os.kill(os.getpid(), SIGNAL)
    assert again.take() == ProfileRequest(4)


def test_signal_used_by_the_program_is_untouched(caplog: pytest.LogCaptureFixture) -> None:
    received: list[int] = []
    signal.signal(SIGNAL, lambda number, _: received.append(number))
    requests = ProfileRequests(4)
    requests.listen()
    requests.close()
    os.kill(os.getpid(), SIGNAL)
    assert (received, requests.take()) == ([SIGNAL], None)
    assert "the program handles that signal itself" in caplog.text


def test_in_another_thread_there_are_no_signals(caplog: pytest.LogCaptureFixture) -> None:
    signal.signal(SIGNAL, signal.SIG_DFL)
    thread = threading.Thread(target=ProfileRequests(4).listen)
    thread.start()
    thread.join()
    assert "only a program's main thread" in caplog.text
    assert signal.getsignal(SIGNAL) == signal.SIG_DFL
