"""The process that ranks are forked from: when there is one, what it outlasts, and that nothing is lost where it is gone."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.unit.agent.operator_process import Operator
from tests.unit.agent.running import alive
from tests.unit.agent.warm_runs import NOT_READY, READY, Run, run
from trainyard_agent.processes import descendants

HELD = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "a file": "file = open(__file__)",
    "a socket": "import socket\nmade = socket.socketpair()",
    "an error": "raise RuntimeError('no such device')",
    "an end": "import sys\nsys.exit(3)",
}
"""What an installed package may do when it is imported."""
SAY = "import os, sys\nsys.stdout.write(os.environ['RANK'] + ' ' + os.environ['TRAINYARD_ATTEMPT'] + '\\n')\n"


def install(folder: Path, source: str) -> dict[str, str]:
    """A package `heavy`, as if it had been installed."""
    (folder / "lib/site-packages").mkdir(parents=True, exist_ok=True)
    (folder / "lib/site-packages/heavy.py").write_text(source)
    return {"PYTHONPATH": str(folder / "lib/site-packages")}


def test_installed_packages_are_imported_once(
    program: Path, folder: Path, operator: Operator
) -> None:
    environment = install(folder, "import os\nopen('imports', 'a').write(f'heavy {os.getpid()}\\n')\nvalue = 7")
    (folder / "own.py").write_text("import os\nopen('imports', 'a').write(f'own {os.getpid()}\\n')")
    (folder / "script.py").write_text(
        "import heavy, own\nfrom heavy import value\nimport os\nprint(value, os.getpid())"
    )
    ran, line = run(program, folder, operator, sys.executable, "script.py", **environment)
    assert "imported=heavy seconds=" in line
    assert ran.code == 0
    value, pid = ran.output.split()
    imports = (folder / "imports").read_text().split()
    assert (value, imports[0], imports[2:]) == ("7", "heavy", ["own", pid])
    assert imports[1] != pid


def test_import_archive_may_stay_open(program: Path, folder: Path, operator: Operator) -> None:
    """As importlib.metadata does, when it looks there for the versions of packages."""
    heavy = "import os, sys\nkept = [open(each, 'rb') for each in sys.path if os.path.isfile(each)]\nassert kept"
    (folder / "script.py").write_text("import heavy\nprint('ran', flush=True)\n")
    ran, line = run(program, folder, operator, sys.executable, "script.py", **install(folder, heavy))
    assert "imported=heavy seconds=" in line
    assert (ran.code, ran.output) == (0, "ran\n")


@pytest.mark.parametrize("what", HELD)
def test_imports_unsafe_to_fork_are_not_prepared(
    program: Path, folder: Path, operator: Operator, what: str
) -> None:
    environment = install(folder, HELD[what])
    (folder / "script.py").write_text("import heavy\nprint('ran', flush=True)\n")
    ran, line = run(program, folder, operator, sys.executable, "script.py", **environment)
    assert NOT_READY in line
    assert (ran.code, ran.output) == {"an error": (1, ""), "an end": (3, "")}.get(what, (0, "ran\n"))


def test_program_module_shadows_installed_package(
    program: Path, folder: Path, operator: Operator
) -> None:
    environment = install(folder, "import secrets")
    (folder / "secrets.py").write_text("own = True")
    (folder / "script.py").write_text("import heavy\nimport secrets\nprint(secrets.own)")
    ran, line = run(program, folder, operator, sys.executable, "script.py", **environment)
    assert (NOT_READY in line, "module secrets of its own" in line) == (True, True)
    assert ran.output == "True\n"


@pytest.mark.parametrize("text", ["if True print(1)", None])
def test_unreadable_script_is_left_to_python(
    program: Path, folder: Path, operator: Operator, text: str | None
) -> None:
    if text is not None:
        (folder / "script.py").write_text(text)
    ran, line = run(program, folder, operator, sys.executable, "script.py")
    assert NOT_READY in line
    assert ran.code == (1 if text else 2)


def test_warm_start_can_be_disabled(program: Path, folder: Path, operator: Operator) -> None:
    (folder / "script.py").write_text("print('ran')")
    made = Run(program, folder, operator, sys.executable, "script.py", TRAINYARD_WARM_START="0")
    try:
        operator.hears("waiting", 2)
        assert descendants(made.agent.process.pid) == set()
        assert made.ends().output == "ran\n"
    finally:
        made.agent.kill()


def test_order_can_disable_warm_start(program: Path, folder: Path, operator: Operator) -> None:
    environment = install(folder, "import os\nby = os.getpid()")
    (folder / "script.py").write_text("import heavy, os\nprint(heavy.by == os.getpid())")
    made = Run(program, folder, operator, sys.executable, "script.py", **environment)
    try:
        made.until_ready(READY)
        assert made.ends(TRAINYARD_WARM_START="0").output == "True\n"
    finally:
        made.agent.kill()


def test_order_can_enable_warm_start(program: Path, folder: Path, operator: Operator) -> None:
    (folder / "script.py").write_text("import time\ntime.sleep(60)")
    made = Run(program, folder, operator, sys.executable, "script.py", TRAINYARD_WARM_START="0")
    try:
        operator.hears("waiting", 2)
        operator.order(2, run=True, TRAINYARD_WARM_START="")
        assert READY in made.until_ready()
    finally:
        made.agent.kill()


def test_changed_environment_disables_the_fork(
    program: Path, folder: Path, operator: Operator
) -> None:
    (folder / "script.py").write_text("import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['MASTER_ADDR'])")
    made = Run(program, folder, operator, sys.executable, "script.py", OMP_NUM_THREADS="2")
    try:
        made.until_ready(READY)
        assert made.ends(OMP_NUM_THREADS="3", MASTER_ADDR="there").output == "3 there\n"
    finally:
        made.agent.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_start_without_a_warm_process(
    program: Path, folder: Path, operator: Operator, number: signal.Signals
) -> None:
    (folder / "script.py").write_text(SAY)
    made = Run(program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2")
    try:
        made.until_ready(READY)
        (warm,) = descendants(made.agent.process.pid)
        os.kill(warm, number)
        ran = made.ends()
        assert (ran.code, sorted(ran.output.splitlines())) == (0, ["0 2", "1 2"])
        assert not alive(warm)
    finally:
        made.agent.kill()


def test_warm_process_lives_as_long_as_agent(program: Path, folder: Path, operator: Operator) -> None:
    script = """
import os, subprocess, sys, time
R, A = os.environ["RANK"], os.environ["TRAINYARD_ATTEMPT"]
def say(name, text):
    with open(name + ".new", "w") as file: file.write(str(text))
    os.rename(name + ".new", name)
say(f"parent{R}-{A}", os.getppid())
left = subprocess.Popen(["setsid", "sleep", "600"])
say(f"left{R}-{A}", left.pid)
while not os.path.exists(f"go-{A}"): time.sleep(0.01)
if A == "4": sys.exit(0)
if R == "1": os.kill(os.getpid(), 9)
time.sleep(600)
"""
    (folder / "script.py").write_text(script)
    made = Run(program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2")
    try:
        made.until_ready(READY)
        (warm,) = descendants(made.agent.process.pid)
        for attempt in (2, 3, 4):
            operator.order(attempt, run=True)
            for rank in (0, 1):
                assert int(made.agent.file(f"parent{rank}-{attempt}")) == made.agent.process.pid
                made.agent.file(f"left{rank}-{attempt}")
            (folder / f"go-{attempt}").touch()
            if attempt < 4:
                assert operator.hears("failed", attempt)["failure"]["code"] == 137
                operator.order(attempt + 1, run=False)
                operator.hears("waiting", attempt + 1)
                assert descendants(made.agent.process.pid) == {warm}
        assert made.agent.ends()[0] == 0
        assert not alive(warm)
    finally:
        made.agent.kill()


def test_warm_start_serves_the_second_attempt(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = (
        SAY
        + "import time\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.exit(os.environ['TRAINYARD_ATTEMPT'] == '2')"
    )
    (folder / "script.py").write_text(script)
    made = Run(program, folder, operator, sys.executable, "script.py", TRAINYARD_RENDEZVOUS="")
    try:
        made.until_ready(READY)
        before = descendants(made.agent.process.pid)
        (folder / "go").touch()
        operator.hears("failed", 2)
        operator.order(3, run=True)
        output, _ = made.agent.process.communicate(timeout=60)
        assert (made.agent.process.returncode, output, len(before)) == (0, "0 2\n0 3\n", 2)
    finally:
        made.agent.kill()


@pytest.mark.parametrize("policy", ["SCHED_OTHER", "SCHED_BATCH"])
def test_forked_rank_keeps_its_scheduling_priority(
    program: Path, folder: Path, operator: Operator, policy: str
) -> None:
    """The policy of the container too, where somebody has set one."""
    (folder / "script.py").write_text("import os\nprint(os.sched_getscheduler(0), os.nice(0))")
    before, wished = os.sched_getscheduler(0), getattr(os, policy)
    os.sched_setscheduler(0, wished, os.sched_param(0))
    try:
        ran, line = run(program, folder, operator, sys.executable, "script.py")
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))
    assert READY in line
    assert ran.output == f"{wished} {os.nice(0)}\n"


def test_random_numbers_differ_between_ranks(program: Path, folder: Path, operator: Operator) -> None:
    """Like those of numpy and torch, which draw a seed when they are loaded."""
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
    ran, line = run(
        program, folder, operator, sys.executable, "script.py", TRAINYARD_PROCESSES_PER_REPLICA="2", **environment
    )
    assert READY in line
    assert len(set(ran.output.splitlines())) == 6


def test_other_command_has_no_warm_start(program: Path, folder: Path, operator: Operator) -> None:
    made = Run(program, folder, operator, "sh", "-c", "echo ran")
    try:
        operator.hears("waiting", 2)
        assert descendants(made.agent.process.pid) == set()
        assert made.ends().output == "ran\n"
    finally:
        made.agent.kill()


def test_warm_start_line_includes_its_cost(program: Path, folder: Path, operator: Operator) -> None:
    (folder / "script.py").write_text("print(1)")
    _, line = run(program, folder, operator, sys.executable, "script.py")
    assert line.startswith("trainyard-agent: prepared warm start imported=none seconds=")
    assert line.endswith("MiB\n")
