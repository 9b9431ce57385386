"""How a worker ends that never gets to its ranks: asked to before it had begun, or forgotten by the operator."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.unit.agent.conftest import AGENT
from tests.unit.agent.operator import Operator, credentials
from tests.unit.agent.place import PLACE
from tests.unit.agent.running import Agent
from trainyard_agent.attempt import Command
from trainyard_agent.group import Group
from trainyard_agent.main import main
from trainyard_agent.orders import Final, News
from trainyard_agent.worker import End, Worker

if TYPE_CHECKING:
    from trainyard_agent.sync import Sync

TRAINER = AGENT.parent


def test_a_signal_that_came_before_the_agent_was_ready_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(tmp_path / "log"))
    ran = tmp_path / "ran"
    assert main(["--", "touch", str(ran)], [signal.SIGTERM]) == 143
    assert not ran.exists()
    assert main(["--", "touch", str(ran)], []) == 0
    assert ran.exists()


def test_one_that_comes_while_it_is_imported_is_kept(tmp_path: Path) -> None:
    shutil.copy(AGENT / "__main__.py", tmp_path)
    (tmp_path / "trainyard_agent").mkdir()
    imported = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\ndef main(heard): print(*heard); return 7\n"
    (tmp_path / "trainyard_agent/main.py").write_text(imported)
    done = subprocess.run([sys.executable, "-I", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, f"{signal.SIGTERM:d}\n")


def test_one_that_comes_while_a_python_is_looked_for_ends_the_container(tmp_path: Path) -> None:
    """As its first process, which would not hear it otherwise."""
    finder = tmp_path / "python3"
    finder.write_text("#!/bin/sh\nkill -TERM $PPID\nexit 1\n")
    finder.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRAINYARD_TERMINATION_LOG": str(tmp_path / "log")}
    start = ["/bin/sh", str(TRAINER / "start-agent.sh"), "--", "true"]
    assert subprocess.run(start, env=environment, check=False, timeout=60).returncode == 143


class Silent:
    """An operator that has answered once, and does not any more."""

    on = True

    def __init__(self, final: Final | None) -> None:
        self._news = News(None, final, answered=True, silence=601.0)

    def news(self, _since: float) -> News:
        return self._news

    def tell(self, *_: Any, **__: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("final", "end"),
    [
        (None, End(92, "attempt 4 was waited for in vain: nothing was heard of the operator for 601 seconds")),
        (Final.OFF, End(92, "attempt 4 was waited for in vain: the operator cannot be asked")),
        (Final.OVER, End(143)),
        (Final.REPLACED, End(143)),
    ],
)
def test_a_worker_that_nobody_tells_to_begin_says_so_and_is_nobody_s_failure(final: Final | None, end: End) -> None:
    environment = {**PLACE, "TRAINYARD_ATTEMPT": "4"}
    with Group() as group:
        sync = cast("Sync", Silent(final))
        assert Worker(Command(["true"], once=False), environment, group, sync, print).run(wait=True) == end


def test_so_does_one_whose_operator_knows_nothing_of_it(program: Path, folder: Path, operator: Operator) -> None:
    operator.says = (404, {})
    waits = {**credentials(folder, operator.port), "TRAINYARD_RENDEZVOUS": "wait"}
    run = Agent(program, folder, "--", "true", **waits)
    assert run.ends()[0] == 92
    assert run.message == "attempt 1 was waited for in vain: the operator cannot be asked"
