"""The warm process imports what the program imports first, in the same state."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.agent.fake_operator import FakeOperator
from tests.unit.agent.warm_start_run import NOT_READY, READY, Outcome, WarmStartRun, run_attempt

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


class Prefix(NamedTuple):
    text: str
    imported: bool
    """Whether the warm process imports the library."""
    file: str = ""
    """A path, and after a newline its text."""
    words: tuple[str, ...] = ("script.py",)


PREFIXES = {
    "empty": Prefix("", imported=True),
    "sets a variable": Prefix(SET, imported=False),
    "sets a variable after the import": Prefix(f"import libx\n{SET}", imported=True),
    "inserts into sys.path": Prefix(
        "import sys\nsys.path.insert(0, 'vendor')", imported=False, file=f"vendor/libx.py\n{LIBRARY}"
    ),
    "program module": Prefix("import own", imported=False, file=f"own.py\n{SET}"),
    "program namespace package": Prefix("import own.one", imported=False, file=f"own/one.py\n{SET}"),
    "parent package sets a variable": Prefix(
        "", imported=False, file=f"pkg/__init__.py\n{SET}", words=("-m", "pkg.script")
    ),
    "parent package without effects": Prefix(
        "", imported=True, file="pkg/__init__.py\n'What it is.'", words=("-m", "pkg.script")
    ),
    "usual imports": Prefix(
        "#!/usr/bin/env python\n'''What it does.'''\nfrom __future__ import annotations\nimport argparse, os.path as path\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nowhere import Thing\n__version__ = '1'\nSIZE: int = 2 * 8",
        imported=True,
    ),
    "function and class": Prefix(
        "def f(x: int = 1, *, y: list[str] | None = None) -> None: import nowhere\nclass A:\n    a = 1\n    def g(self): ...",
        imported=True,
    ),
    "decorated function": Prefix(f"def f(g):\n    {SET.replace(chr(10), ';')}\n@f\ndef g(): ...", imported=False),
    "default argument with a call": Prefix(
        f"{SET[:10]}\ndef f(x=os.environ.setdefault('LIBX_HOME', '/data')): ...", imported=False
    ),
    "class body with effects": Prefix(f"class A:\n    {SET.replace(chr(10), ';')}", imported=False),
    "constant condition": Prefix("DEBUG = False\nif DEBUG:\n    import nowhere\nelse:\n    import json", imported=True),
    "unknown condition": Prefix(f"if len('a'):\n    {SET.replace(chr(10), ';')}", imported=False),
    "missing module": Prefix("try:\n    import nowhere\nexcept ImportError:\n    nowhere = None", imported=True),
    "missing name in a module": Prefix(
        "try:\n    from json import no\nexcept (ImportError, OSError):\n    no = None", imported=True
    ),
    "sets a variable if a module is missing": Prefix(
        f"try:\n    import nowhere\nexcept ImportError:\n    {SET.replace(chr(10), ';')}", imported=False
    ),
    "sets a variable if a module exists": Prefix(
        f"try:\n    import json\nexcept ImportError: pass\nelse:\n    {SET.replace(chr(10), ';')}", imported=False
    ),
    "reads a clock": Prefix(
        "import time\nfrom time import perf_counter_ns as now\nBEGAN = time.monotonic()\nagain: int = now()",
        imported=True,
    ),
    "function named like a clock": Prefix(
        f"from time import monotonic\ndef monotonic():\n    {SET.replace(chr(10), ';')}\nBEGAN = monotonic()",
        imported=False,
    ),
    "changes __file__": Prefix("__file__ = 'other'", imported=False),
}


def install(folder: Path, **sources: str) -> dict[str, str]:
    """Install packages, and return the variables by which they are found."""
    site = folder / "lib/site-packages"
    site.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        (site / f"{name}.py").write_text(source)
    return {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "", "LANG": "C"}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("name", PREFIXES)
def test_import_prefix_gives_same_result(program: Path, folder: Path, operator: FakeOperator, name: str) -> None:
    prefix = PREFIXES[name]
    environment = install(folder, libx=LIBRARY)
    if prefix.file:
        path, _, text = prefix.file.partition("\n")
        write(folder / path, text)
    write(folder / prefix.words[-1].replace("pkg.script", "pkg/script.py"), f"{prefix.text}\n{SAY}")
    words = [sys.executable, *prefix.words]
    fresh = subprocess.run(
        words, env={**os.environ, **environment}, cwd=folder, capture_output=True, text=True, check=True
    )
    warm, line = run_attempt(program, folder, operator, *words, **environment)
    assert (f"imported={'libx' if prefix.imported else 'none'} seconds=" in line, warm.errors) == (True, "")
    assert warm.output == fresh.stdout


READS = {
    "os.environ.get": "import os\nvalue = os.environ.get('{name}')",
    "os.getenv": "from os import getenv\nvalue = getenv('{name}')",
    "membership test": "import os\nvalue = '{name}' in os.environ and os.environ['{name}']",
    "copied environment": "import os\nvalue = dict(os.environ).get('{name}')\nclass A: own = os.environ.copy()",
    "filtered environment": "import os\nown = {{k: v for k, v in os.environ.items() if '{name}' in k}}\nvalue = own['{name}']",
}


def run_reader(
    program: Path, folder: Path, operator: FakeOperator, source: str, **environment: str
) -> tuple[Outcome, str]:
    """Run a program that prints what a library read during its import."""
    write(folder / "script.py", "import reader, sys\nsys.stdout.write(f'{reader.value}\\n')")
    return run_attempt(
        program, folder, operator, sys.executable, "script.py", **install(folder, reader=source), **environment
    )


@pytest.mark.parametrize("how", READS)
def test_library_reading_rank_variable_disables_warm_start(
    program: Path, folder: Path, operator: FakeOperator, how: str
) -> None:
    made, line = run_reader(
        program, folder, operator, READS[how].format(name="RANK"), TRAINYARD_PROCESSES_PER_REPLICA="2"
    )
    assert f"{NOT_READY}: what is imported reads " in line
    assert " RANK" in line
    assert "which differs between ranks or attempts" in line
    assert sorted(made.output.split()) == ["0", "1"]


ALLOWED_READS = {
    "shared variable": READS["os.environ.get"].format(name="WORLD_SIZE"),
    "variable names": "import os\nvalue = len([each for each in os.environ if each == 'WORLD_SIZE']) + 1",
    "variables with a prefix": "import os\nvalue = 2\nfor name, text in os.environ.items():\n    if name.startswith('NUMBA_'): value = text",
    "discarded copy": "import os\nvalue = len({name for name in dict(os.environ) if name == 'WORLD_SIZE'}) + 1",
}


@pytest.mark.parametrize("what", ALLOWED_READS)
def test_library_may_read_shared_variables(program: Path, folder: Path, operator: FakeOperator, what: str) -> None:
    made, line = run_reader(program, folder, operator, ALLOWED_READS[what], TRAINYARD_PROCESSES_PER_REPLICA="2")
    assert "imported=reader seconds=" in line
    assert made.output.split() == ["2", "2"]


def test_single_rank_keeps_its_rank_variable(program: Path, folder: Path, operator: FakeOperator) -> None:
    own = {"TRAINYARD_REPLICAS": "3", "TRAINYARD_REPLICA_INDEX": "2"}
    made, line = run_reader(program, folder, operator, READS["os.environ.get"].format(name="RANK"), **own)
    assert ("imported=reader seconds=" in line, made.output) == (True, "2\n")


def test_changed_variable_is_read_again(program: Path, folder: Path, operator: FakeOperator) -> None:
    write(folder / "script.py", "import reader\nprint(reader.value)")
    environment = install(folder, reader=READS["os.environ.get"].format(name="MASTER_PORT"))
    made = WarmStartRun(program, folder, operator, sys.executable, "script.py", MASTER_PORT="29500", **environment)
    try:
        made.wait_until_ready(READY)
        assert made.finish(MASTER_PORT="29501").output == "29501\n"
    finally:
        made.agent.kill()


def test_library_finds_module_of_the_program(program: Path, folder: Path, operator: FakeOperator) -> None:
    write(folder / "settings_of_heavy.py", "value = 'own'")
    source = "try:\n    from settings_of_heavy import value\nexcept ImportError:\n    value = 'none'"
    made, line = run_reader(program, folder, operator, source)
    assert "module settings_of_heavy of its own" in line
    assert made.output == "own\n"


def test_failing_import_is_left_to_the_program(program: Path, folder: Path, operator: FakeOperator) -> None:
    write(folder / "script.py", "try:\n    import half\nexcept ImportError:\n    print('half')")
    made, line = run_attempt(
        program, folder, operator, sys.executable, "script.py", **install(folder, half="raise ImportError('no driver')")
    )
    assert NOT_READY in line
    assert "half: no driver" in line
    assert made.output == "half\n"
