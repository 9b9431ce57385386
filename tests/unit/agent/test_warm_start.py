"""The warm process: when it exists, how long it lives, and how ranks start without it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import is_alive
from tests.unit.agent.fake_jax import fake_jax
from tests.unit.agent.fake_operator import FakeOperator
from tests.unit.agent.fake_torch import fake_torch
from tests.unit.agent.warm_start_run import NOT_READY, READY, WarmStartRun, run_attempt
from trainyard_agent.processes import descendants

UNSAFE_IMPORTS = {
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "open file": "file = open(__file__)",
    "socket": "import socket\nmade = socket.socketpair()",
    "exception": "raise RuntimeError('no such device')",
    "exit": "import sys\nsys.exit(3)",
}
"""What an installed package does during its import."""
SAY = "import os, sys\nsys.stdout.write(os.environ['RANK'] + ' ' + os.environ['TRAINYARD_ATTEMPT'] + '\\n')\n"


def install(folder: Path, source: str) -> dict[str, str]:
    """Install a package `heavy`, and return the variables by which it is found."""
    (folder / "lib/site-packages").mkdir(parents=True, exist_ok=True)
    (folder / "lib/site-packages/heavy.py").write_text(source)
    return {"PYTHONPATH": str(folder / "lib/site-packages")}


def test_installed_packages_are_imported_once(program: Path, folder: Path, operator: FakeOperator) -> None:
    environment = install(folder, "import os\nopen('imports', 'a').write(f'heavy {os.getpid()}\\n')\nvalue = 7")
    (folder / "own.py").write_text("import os\nopen('imports', 'a').write(f'own {os.getpid()}\\n')")
    (folder / "script.py").write_text(
        "import heavy, own\nfrom heavy import value\nimport os\nprint(value, os.getpid())"
    )
    outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py", **environment)
    assert "imported=heavy seconds=" in line
    assert outcome.code == 0
    value, pid = outcome.output.split()
    imports = (folder / "imports").read_text().split()
    assert (value, imports[0], imports[2:]) == ("7", "heavy", ["own", pid])
    assert imports[1] != pid


@pytest.mark.parametrize("name", ["torch.distributed", "jax", "accelerate.state"])
def test_observed_frameworks_are_imported_once(program: Path, folder: Path, operator: FakeOperator, name: str) -> None:
    environment = install(folder, "import os\npid = os.getpid()")
    installed = folder / "lib/site-packages"
    fake_torch(installed)
    fake_jax(installed)
    (installed / "accelerate").mkdir()
    (installed / "accelerate/state.py").write_text("class PartialState: pass")
    (folder / "script.py").write_text(f"import heavy, {name}\nimport os\nprint(heavy.pid == os.getpid())")
    words = sys.executable, "script.py"
    run = WarmStartRun(program, folder, operator, *words, JAX_COORDINATOR_ADDRESS="first:1", **environment)
    try:
        assert READY in run.wait_until_ready()
        outcome = run.finish(JAX_COORDINATOR_ADDRESS="second:1")
    finally:
        run.agent.kill()
    assert (outcome.code, outcome.output) == (0, "False\n")


def test_import_archive_may_stay_open(program: Path, folder: Path, operator: FakeOperator) -> None:
    """importlib.metadata does so to read the versions of packages."""
    heavy = "import os, sys\nkept = [open(each, 'rb') for each in sys.path if os.path.isfile(each)]\nassert kept"
    (folder / "script.py").write_text("import heavy\nprint('ran', flush=True)\n")
    outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py", **install(folder, heavy))
    assert "imported=heavy seconds=" in line
    assert (outcome.code, outcome.output) == (0, "ran\n")


@pytest.mark.parametrize("what", UNSAFE_IMPORTS)
def test_imports_unsafe_to_fork_are_not_prepared(
    program: Path, folder: Path, operator: FakeOperator, what: str
) -> None:
    environment = install(folder, UNSAFE_IMPORTS[what])
    (folder / "script.py").write_text("import heavy\nprint('ran', flush=True)\n")
    outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py", **environment)
    assert NOT_READY in line
    assert (outcome.code, outcome.output) == {"exception": (1, ""), "exit": (3, "")}.get(what, (0, "ran\n"))


def test_program_module_shadows_installed_package(program: Path, folder: Path, operator: FakeOperator) -> None:
    environment = install(folder, "import secrets")
    (folder / "secrets.py").write_text("own = True")
    (folder / "script.py").write_text("import heavy\nimport secrets\nprint(secrets.own)")
    outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py", **environment)
    assert (NOT_READY in line, "module secrets of its own" in line) == (True, True)
    assert outcome.output == "True\n"


@pytest.mark.parametrize("text", ["if True print(1)", None])
def test_unreadable_script_is_left_to_python(
    program: Path, folder: Path, operator: FakeOperator, text: str | None
) -> None:
    if text is not None:
        (folder / "script.py").write_text(text)
    outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py")
    assert NOT_READY in line
    assert outcome.code == (1 if text else 2)


def test_warm_start_can_be_disabled(program: Path, folder: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text("print('ran')")
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", TRAINYARD_WARM_START="0")
    try:
        operator.wait_for("waiting", 2)
        assert descendants(made.agent.process.pid) == set()
        assert made.finish().output == "ran\n"
    finally:
        made.agent.kill()


def test_order_can_disable_warm_start(program: Path, folder: Path, operator: FakeOperator) -> None:
    environment = install(folder, "import os\nby = os.getpid()")
    (folder / "script.py").write_text("import heavy, os\nprint(heavy.by == os.getpid())")
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", **environment)
    try:
        made.wait_until_ready(READY)
        assert made.finish(TRAINYARD_WARM_START="0").output == "True\n"
    finally:
        made.agent.kill()


def test_order_can_enable_warm_start(program: Path, folder: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(60)")
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", TRAINYARD_WARM_START="0")
    try:
        operator.wait_for("waiting", 2)
        operator.order(2, run=True, TRAINYARD_WARM_START="")
        assert READY in made.wait_until_ready()
    finally:
        made.agent.kill()


def test_changed_environment_disables_the_fork(program: Path, folder: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text("import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['MASTER_ADDR'])")
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", OMP_NUM_THREADS="2")
    try:
        made.wait_until_ready(READY)
        assert made.finish(OMP_NUM_THREADS="3", MASTER_ADDR="there").output == "3 there\n"
    finally:
        made.agent.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_start_without_a_warm_process(
    program: Path, folder: Path, operator: FakeOperator, number: signal.Signals
) -> None:
    (folder / "script.py").write_text(SAY)
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2")
    try:
        made.wait_until_ready(READY)
        (warm,) = descendants(made.agent.process.pid)
        os.kill(warm, number)
        outcome = made.finish()
        assert (outcome.code, sorted(outcome.output.splitlines())) == (0, ["0 2", "1 2"])
        assert not is_alive(warm)
    finally:
        made.agent.kill()


def test_warm_process_lives_as_long_as_agent(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = """
import os, subprocess, sys, time
R, A = os.environ["RANK"], os.environ["TRAINYARD_ATTEMPT"]
def record(name, text):
    with open(name + ".new", "w") as file: file.write(str(text))
    os.rename(name + ".new", name)
record(f"parent{R}-{A}", os.getppid())
left = subprocess.Popen(["setsid", "sleep", "600"])
record(f"left{R}-{A}", left.pid)
while not os.path.exists(f"go-{A}"): time.sleep(0.01)
if A == "4": sys.exit(0)
if R == "1": os.kill(os.getpid(), 9)
time.sleep(600)
"""
    (folder / "script.py").write_text(script)
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2")
    try:
        made.wait_until_ready(READY)
        (warm,) = descendants(made.agent.process.pid)
        for attempt in (2, 3, 4):
            operator.order(attempt, run=True)
            for rank in (0, 1):
                assert int(made.agent.file(f"parent{rank}-{attempt}")) == made.agent.process.pid
                made.agent.file(f"left{rank}-{attempt}")
            (folder / f"go-{attempt}").touch()
            if attempt < 4:
                assert operator.wait_for("failed", attempt)["failure"]["code"] == 137
                operator.order(attempt + 1, run=False)
                operator.wait_for("waiting", attempt + 1)
                assert descendants(made.agent.process.pid) == {warm}
        assert made.agent.wait()[0] == 0
        assert not is_alive(warm)
    finally:
        made.agent.kill()


def test_warm_start_serves_the_second_attempt(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = (
        SAY
        + "import time\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(os.environ['TRAINYARD_ATTEMPT'] == '2')"
    )
    (folder / "script.py").write_text(script)
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", TRAINYARD_RENDEZVOUS="")
    try:
        made.wait_until_ready(READY)
        before = descendants(made.agent.process.pid)
        (folder / "go").touch()
        operator.wait_for("failed", 2)
        operator.order(3, run=True)
        output, _ = made.agent.process.communicate(timeout=60)
        assert (made.agent.process.returncode, output, len(before)) == (0, "0 2\n0 3\n", 2)
    finally:
        made.agent.kill()


@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH"])
def test_forked_rank_keeps_its_scheduling_priority(
    program: Path, folder: Path, operator: FakeOperator, policy: str
) -> None:
    """Also the scheduling policy of its container."""
    (folder / "script.py").write_text("import os\nprint(os.sched_getscheduler(0), os.nice(0))")
    before, requested = os.sched_getscheduler(0), getattr(os, policy)
    os.sched_setscheduler(0, requested, os.sched_param(0))
    try:
        outcome, line = run_attempt(program, folder, operator, sys.executable, "script.py")
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
    assert READY in line
    assert outcome.output == f"{requested} {os.nice(0)}\n"


def test_random_numbers_differ_between_ranks(program: Path, folder: Path, operator: FakeOperator) -> None:
    """numpy and torch draw a seed during their import."""
    drawn = "import random\nclass Generator:\n    def seed(self): self.drawn = random.SystemRandom().random()\n"
    environment = install(folder, "import torch, numpy.random")
    (folder / "lib/site-packages/torch.py").write_text(
        f"{drawn}default_generator = Generator()\ndefault_generator.seed()"
    )
    (folder / "lib/site-packages/numpy").mkdir()
    (folder / "lib/site-packages/numpy/__init__.py").touch()
    random = f"{drawn}own = Generator()\nseed = own.seed\nseed()"
    (folder / "lib/site-packages/numpy/random.py").write_text(random)
    script = """
import heavy, numpy.random, random, sys, torch
for number in (random.random(), numpy.random.own.drawn, torch.default_generator.drawn): sys.stdout.write(f"{number}\\n")
"""
    (folder / "script.py").write_text(script)
    outcome, line = run_attempt(
        program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2", **environment
    )
    assert READY in line
    assert len(set(outcome.output.splitlines())) == 6


def test_other_command_has_no_warm_start(program: Path, folder: Path, operator: FakeOperator) -> None:
    made = WarmStartRun(program, folder, operator, "sh", "-c", "echo ran")
    try:
        operator.wait_for("waiting", 2)
        assert descendants(made.agent.process.pid) == set()
        assert made.finish().output == "ran\n"
    finally:
        made.agent.kill()


def test_warm_start_line_includes_its_cost(program: Path, folder: Path, operator: FakeOperator) -> None:
    (folder / "script.py").write_text("print(1)")
    _, line = run_attempt(program, folder, operator, sys.executable, "script.py")
    assert line.startswith("trainyard-agent: prepared warm start imported=none seconds=")
    assert line.endswith("MiB\n")
