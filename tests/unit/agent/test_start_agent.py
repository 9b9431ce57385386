"""The agent with a launcher as its command, and the script that finds a Python for the agent."""

import os
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import displayed
from tests.unit.agent.worker_environment import AGENT_SOURCE, TRAINER_IMAGE, WORKER_VARIABLES

FOUR_RANKS = {**WORKER_VARIABLES, "TRAINYARD_PROCESSES_PER_REPLICA": "4"}


@pytest.fixture(scope="module")
def injected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the init container fills."""
    folder = tmp_path_factory.mktemp("injected")
    zipapp.create_archive(AGENT_SOURCE, folder / "agent", compressed=True)
    shutil.copy(TRAINER_IMAGE / "start-agent.sh", folder / "start")
    return folder


def start(injected: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    """Return exit code, termination message and output."""
    log = injected / "termination-log"
    log.write_text("")
    made = {**os.environ, **FOUR_RANKS, "TRAINYARD_TERMINATION_LOG": str(log), **environment}
    done = subprocess.run(
        ["/bin/sh", str(injected / "start"), *words], env=made, check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, displayed(log.read_text()), done.stdout + done.stderr


def test_command_runs_once_with_container_environment(injected: Path) -> None:
    script = "import os; print(*sorted(os.environ.keys() & {'RANK', 'WORLD_SIZE', 'TRAINYARD_PROGRESS_FILE', 'MASTER_ADDR'}))"
    assert start(injected, "--once", "--", sys.executable, "-c", script, MASTER_ADDR="here") == (0, "", "MASTER_ADDR\n")


def test_injected_library_can_be_imported(injected: Path) -> None:
    """It comes after the program's modules, and logs nothing without an agent that reads its reports."""
    script = "import sys, trainyard_agent; trainyard_agent.progress(3); print(sys.path[1])"
    assert start(injected, "--once", "--", sys.executable, "-c", script, PYTHONPATH="/own") == (0, "", "/own\n")


def test_launcher_failure_shows_the_rank_exception(injected: Path) -> None:
    script = """
import subprocess, sys
class ChildFailedError(Exception): pass
subprocess.run([sys.executable, "-c", "raise ValueError('boom')"])
raise ChildFailedError("rank 3 failed")
"""
    code, message, output = start(injected, "--once", "--", sys.executable, "-c", script)
    assert code == 1
    assert message.startswith("the command exited with code 1: ValueError: boom\nTraceback")
    assert "ChildFailedError" not in message
    assert "ChildFailedError" in output


def test_message_is_empty_without_more_facts(injected: Path) -> None:
    assert start(injected, "--once", "--", "sh", "-c", "echo no data; exit 3") == (3, "", "no data\n")
    code, message, _ = start(injected, "--once", "--", "sh", "-c", "echo no data >&2; exit 3")
    assert (code, message) == (3, "the command exited with code 3: no data\nno data")
    code, message, _ = start(injected, "--once", "--", "sh", "-c", "kill -9 $$")
    assert (code, message) == (137, "the command was killed by SIGKILL")


LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, "RANK": str(r)}) for r in range(4, 8)]
sys.exit(max(rank.wait() for rank in ranks))
"""
STEPS = """
import os, sys, time
from trainyard_agent import progress
R = int(os.environ["RANK"])
def load(): time.sleep(600)
def all_reduce(): time.sleep(600)
for step in range(R, 10): progress(step); time.sleep(0.2)
"""


def test_hung_rank_of_launcher_is_named(injected: Path) -> None:
    ranks = STEPS + "\nload() if R == 6 else all_reduce()"
    code, message, output = start(
        injected, "--once", "--", sys.executable, "-c", LAUNCHER, ranks, TRAINYARD_HANG_TIMEOUT_SECONDS="2"
    )
    assert code == 91
    assert message.startswith("rank 6 is hung at ")
    assert "; all other ranks of the worker are elsewhere\nrank 4: " in message
    assert output.count("hangs, or waits for a rank that does\n") == 4


def test_exited_rank_of_launcher_is_not_hung(injected: Path) -> None:
    ranks = STEPS + "\nif R == 4:\n    for step in range(10, 30): progress(step); time.sleep(0.2)"
    code, message, _ = start(
        injected, "--once", "--", sys.executable, "-c", LAUNCHER, ranks, TRAINYARD_HANG_TIMEOUT_SECONDS="1"
    )
    assert (code, message) == (0, "")


def test_launcher_failure_includes_last_common_step(injected: Path) -> None:
    ranks = STEPS + "\nif R == 5: raise ValueError('boom')\nprogress(20)"
    code, message, _ = start(injected, "--once", "--", sys.executable, "-c", LAUNCHER, ranks)
    assert code == 1
    assert message.startswith("the command exited with code 1: ValueError: boom\nTraceback")
    assert '"step":9,' in (injected / "termination-log").read_text()


def test_program_without_ranks_is_never_hung(injected: Path) -> None:
    script = "import time; from trainyard_agent import progress; [progress(n) for n in range(9)]; time.sleep(3)"
    assert start(injected, "--once", "--", sys.executable, "-c", script, TRAINYARD_HANG_TIMEOUT_SECONDS="1")[0] == 0


def test_command_may_clear_shared_memory(injected: Path) -> None:
    hangs = "import time\nfrom trainyard_agent import progress\nfor n in range(9): progress(n); time.sleep(0.3)\ntime.sleep(600)"
    clear = 'rm -rf "$TRAINYARD_PROGRESS_DIR"; sleep 2; RANK=4 "$0" -c "$1"'
    words = ("--once", "--", "sh", "-c", clear, sys.executable, hangs)
    code, message, _ = start(injected, *words, TRAINYARD_HANG_TIMEOUT_SECONDS="2")
    assert (code, message.startswith("rank 4 is hung at ")) == (91, True)


def test_each_rank_starts_without_once_flag(injected: Path) -> None:
    script = "import os, sys; sys.stdout.write(os.environ['RANK'])"
    code, message, output = start(injected, "--", sys.executable, "-c", script)
    assert (code, message, sorted(output)) == (0, "", ["4", "5", "6", "7"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH on which there is no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def test_image_without_python_has_its_exit_code(injected: Path, path: Path) -> None:
    reason = "there is no Python 3.9 or newer on the PATH of this image"
    assert start(injected, "--once", "--", "/bin/true", PATH=str(path)) == (96, reason, f"trainyard-agent: {reason}\n")


def test_old_python_is_rejected(injected: Path, path: Path) -> None:
    (path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (path / "python3").chmod(0o755)
    assert start(injected, "--", "/bin/true", PATH=str(path))[0] == 96


def without(module: str) -> str:
    """A Python that lacks a module of the standard library."""
    block = f"import sys; sys.modules['{module}'] = None"
    # A probe by `-c`, or the agent itself.
    return f"""#!/bin/sh
test "$3" = -c && exec {sys.executable} -I -S -c "{block}
$4"
shift 2
exec {sys.executable} -I -S -c "{block}; import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')" "$@"
"""


@pytest.mark.parametrize("module", ["json", "ctypes", "statistics", "zlib"])
def test_python_with_missing_module_is_rejected(injected: Path, path: Path, module: str) -> None:
    """Debian's python3-minimal is an example."""
    (path / "python3").write_text(without(module))
    (path / "python3").chmod(0o755)
    reason = f"there is no Python 3.9 or newer on the PATH of this image that has the module {module}"
    assert start(injected, "--once", "--", "/bin/true", PATH=str(path)) == (96, reason, f"trainyard-agent: {reason}\n")
    words = ["--once", "--", sys.executable, "-c", "print('ran')"]
    assert start(injected, *words, PATH=str(path)) == (0, "", "ran\n")


@pytest.mark.parametrize(
    ("module", "why"),
    [("resource", "of this image cannot run trainyard-agent"), ("ctypes", "before the command was started")],
)
def test_agent_failure_before_start_disables_the_agent(injected: Path, path: Path, module: str, why: str) -> None:
    (path / "python3").write_text(without(module).replace('"$3" = -c', '"$3" = -c && exit 0'))
    (path / "python3").chmod(0o755)
    code, message, _ = start(injected, "--once", "--", "/bin/true", PATH=str(path))
    assert (code, why in message, "\n" in message) == (96, True, False)
    assert '"kind":"agentUnable"' in (injected / "termination-log").read_text()


def test_python_of_the_command_is_used(injected: Path, path: Path) -> None:
    words = ["--once", "--", sys.executable, "-c", "print('ran')"]
    assert start(injected, *words, PATH=str(path)) == (0, "", "ran\n")


def test_program_named_like_python_is_not_run(injected: Path, path: Path) -> None:
    """It would be the program itself, with other arguments."""
    (path / "python_app").write_text("#!/bin/sh\necho ran $*\n")
    (path / "python_app").chmod(0o755)
    code, _, output = start(injected, "--once", "--", str(path / "python_app"), PATH=str(path))
    assert (code, "ran" in output) == (96, False)


def test_program_modules_do_not_shadow_agent_imports(injected: Path, path: Path) -> None:
    """They may have the names of modules of the standard library."""
    (path / "selectors.py").write_text("raise SystemExit('shadowed')")
    assert start(injected, "--once", "--", "/bin/true", PYTHONPATH=str(path)) == (0, "", "")
