"""One at a time; who waits says so, once, and not for ever."""

from pathlib import Path

import pytest

from dev.localcluster import lock
from dev.localcluster.errors import LocalClusterError


def test_waiting_command_names_the_lock_and_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "MOMENT_SECONDS", 0.1)
    held = tmp_path / "lock"
    with lock.exclusive(held, patience=1, busy="never said"):
        assert capsys.readouterr().err == ""
        with (
            pytest.raises(LocalClusterError, match="it stayed busy"),
            lock.exclusive(held, patience=0.5, busy="it stayed busy"),
        ):
            pytest.fail("two at a time")
    assert capsys.readouterr().err == f"waiting up to 0 s for another process that holds {held}\n"
    with lock.exclusive(held, patience=0, busy="never said"):
        assert capsys.readouterr().err == ""
