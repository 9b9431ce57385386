"""What is imported ahead is what the program imports first, in the same state: a forked rank is the program that a started one is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.agent.operator_process import Operator
from tests.unit.agent.warm_runs import NOT_READY, READY, Ran, Run, run

LIBRARY = """
import os, sys
HOME, WHERE, ARGUMENTS = os.environ.get("LIBX_HOME", "default"), __file__, len(sys.argv)
os.environ["LIBX_SEEN"] = HOME
"""
SAY = """
import libx, os
print(libx.HOME, libx.WHERE, libx.ARGUMENTS, os.environ["LIBX_SEEN"], os.environ.get("LC_CTYPE"), flush=True)
"""
SET = "import os\nos.environ['LIBX_HOME'] = '/data'\n"


class Head(NamedTuple):
    text: str
    ahead: bool
    """Whether the library is imported ahead."""
    file: str = ""
    """And what is in it, after a line."""
    words: tuple[str, ...] = ("script.py",)


HEADS = {
    "nothing": Head("", ahead=True),
    "a variable that is set": Head(SET, ahead=False),
    "a variable that is set below the import": Head(f"import libx\n{SET}", ahead=True),
    "a path that is inserted": Head(
        "import sys\nsys.path.insert(0, 'vendor')", ahead=False, file=f"vendor/libx.py\n{LIBRARY}"
    ),
    "a module of its own": Head("import own", ahead=False, file=f"own.py\n{SET}"),
    "a package of its own without a file": Head("import own.one", ahead=False, file=f"own/one.py\n{SET}"),
    "a package around it that sets a variable": Head(
        "", ahead=False, file=f"pkg/__init__.py\n{SET}", words=("-m", "pkg.script")
    ),
    "a package around it that does nothing": Head(
        "", ahead=True, file="pkg/__init__.py\n'What it is.'", words=("-m", "pkg.script")
    ),
    "the usual": Head(
        "#!/usr/bin/env python\n'''What it does.'''\nfrom __future__ import annotations\nimport argparse, os.path as path\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nowhere import Thing\n__version__ = '1'\nSIZE: int = 2 * 8",
        ahead=True,
    ),
    "a function and a class": Head(
        "def f(x: int = 1, *, y: list[str] | None = None) -> None: import nowhere\nclass A:\n    a = 1\n    def g(self): ...",
        ahead=True,
    ),
    "a function that is decorated": Head(f"def f(g):\n    {SET.replace(chr(10), ';')}\n@f\ndef g(): ...", ahead=False),
    "a default that is called": Head(
        f"{SET[:10]}\ndef f(x=os.environ.setdefault('LIBX_HOME', '/data')): ...", ahead=False
    ),
    "a class that does something": Head(f"class A:\n    {SET.replace(chr(10), ';')}", ahead=False),
    "a choice by what is known": Head(
        "DEBUG = False\nif DEBUG:\n    import nowhere\nelse:\n    import json", ahead=True
    ),
    "a choice by what is not": Head(f"if len('a'):\n    {SET.replace(chr(10), ';')}", ahead=False),
    "what is not there": Head("try:\n    import nowhere\nexcept ImportError:\n    nowhere = None", ahead=True),
    "a name that is not there": Head(
        "try:\n    from json import no\nexcept (ImportError, OSError):\n    no = None", ahead=True
    ),
    "a variable set where it is not there": Head(
        f"try:\n    import nowhere\nexcept ImportError:\n    {SET.replace(chr(10), ';')}", ahead=False
    ),
    "a variable set where it is there": Head(
        f"try:\n    import json\nexcept ImportError: pass\nelse:\n    {SET.replace(chr(10), ';')}", ahead=False
    ),
    "a look at a clock": Head(
        "import time\nfrom time import perf_counter_ns as now\nBEGAN = time.monotonic()\nagain: int = now()", ahead=True
    ),
    "what only looks like a clock": Head(
        f"from time import monotonic\ndef monotonic():\n    {SET.replace(chr(10), ';')}\nBEGAN = monotonic()",
        ahead=False,
    ),
    "what main is": Head("__file__ = 'other'", ahead=False),
}


def install(folder: Path, **sources: str) -> dict[str, str]:
    """Packages, as if they had been installed."""
    site = folder / "lib/site-packages"
    site.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        (site / f"{name}.py").write_text(source)
    return {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "", "LANG": "C"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", HEADS)
def test_import_prefix_gives_same_result(program: Path, folder: Path, operator: Operator, name: str) -> None:
    head = HEADS[name]
    environment = install(folder, libx=LIBRARY)
    if head.file:
        path, _, text = head.file.partition("\n")
        write(folder / path, text)
    write(folder / head.words[-1].replace("pkg.script", "pkg/script.py"), f"{head.text}\n{SAY}")
    words = [sys.executable, *head.words]
    fresh = subprocess.run(
        words, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True, check=True
    )
    warm, line = run(program, folder, operator, *words, **environment)
    assert (f"imported={'libx' if head.ahead else 'none'} seconds=" in line, warm.errors) == (True, "")
    assert warm.output == fresh.stdout


READS = {
    "by name": "import os\nvalue = os.environ.get('{name}')",
    "by getenv": "from os import getenv\nvalue = getenv('{name}')",
    "by a look": "import os\nvalue = '{name}' in os.environ and os.environ['{name}']",
    "in a copy": "import os\nvalue = dict(os.environ).get('{name}')\nclass A: own = os.environ.copy()",
    "in a part": "import os\nown = {{k: v for k, v in os.environ.items() if '{name}' in k}}\nvalue = own['{name}']",
}


def ran(program: Path, folder: Path, operator: Operator, source: str, **environment: str) -> tuple[Ran, str]:
    """A program that says what a library has read when it was imported."""
    write(folder / "script.py", "import reader, sys\nsys.stdout.write(f'{reader.value}\\n')")
    return run(program, folder, operator, sys.executable, "script.py", **install(folder, reader=source), **environment)


@pytest.mark.parametrize("how", READS)
def test_library_reading_rank_variable_disables_warm_start(
    program: Path, folder: Path, operator: Operator, how: str
) -> None:
    made, line = ran(program, folder, operator, READS[how].format(name="RANK"), TRAINYARD_PROCESSES_PER_REPLICA="2")
    assert f"{NOT_READY}: what is imported reads " in line
    assert " RANK" in line
    assert "which differs between ranks or attempts" in line
    assert sorted(made.output.split()) == ["0", "1"]


PASSED = {
    "what is the same": READS["by name"].format(name="WORLD_SIZE"),
    "names": "import os\nvalue = len([each for each in os.environ if each == 'WORLD_SIZE']) + 1",
    "those of a prefix": "import os\nvalue = 2\nfor name, text in os.environ.items():\n    if name.startswith('NUMBA_'): value = text",
    "a copy that is gone": "import os\nvalue = len({name for name in dict(os.environ) if name == 'WORLD_SIZE'}) + 1",
}


@pytest.mark.parametrize("what", PASSED)
def test_library_may_read_shared_variables(program: Path, folder: Path, operator: Operator, what: str) -> None:
    made, line = ran(program, folder, operator, PASSED[what], TRAINYARD_PROCESSES_PER_REPLICA="2")
    assert "imported=reader seconds=" in line
    assert made.output.split() == ["2", "2"]


def test_single_rank_keeps_its_rank_variable(program: Path, folder: Path, operator: Operator) -> None:
    own = {"TRAINYARD_REPLICAS": "3", "TRAINYARD_REPLICA_INDEX": "2"}
    made, line = ran(program, folder, operator, READS["by name"].format(name="RANK"), **own)
    assert ("imported=reader seconds=" in line, made.output) == (True, "2\n")


def test_changed_variable_is_read_again(program: Path, folder: Path, operator: Operator) -> None:
    write(folder / "script.py", "import reader\nprint(reader.value)")
    environment = install(folder, reader=READS["by name"].format(name="MASTER_PORT"))
    made = Run(program, folder, operator, sys.executable, "script.py", MASTER_PORT="29500", **environment)
    try:
        made.until_ready(READY)
        assert made.ends(MASTER_PORT="29501").output == "29501\n"
    finally:
        made.agent.kill()


def test_library_finds_module_of_the_program(
    program: Path, folder: Path, operator: Operator
) -> None:
    write(folder / "settings_of_heavy.py", "value = 'own'")
    source = "try:\n    from settings_of_heavy import value\nexcept ImportError:\n    value = 'none'"
    made, line = ran(program, folder, operator, source)
    assert "module settings_of_heavy of its own" in line
    assert made.output == "own\n"


def test_failing_import_is_left_to_the_program(program: Path, folder: Path, operator: Operator) -> None:
    write(folder / "script.py", "try:\n    import half\nexcept ImportError:\n    print('half')")
    made, line = run(
        program, folder, operator, sys.executable, "script.py", **install(folder, half="raise ImportError('no driver')")
    )
    assert NOT_READY in line
    assert "half: no driver" in line
    assert made.output == "half\n"
