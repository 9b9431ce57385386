"""What the Python programs of a worker record about themselves (`sitecustomize.py`)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.fake_torch import fake_torch
from tests.unit.agent.recorded_program import record_of
from tests.unit.agent.worker_environment import AGENT_SOURCE

CAUGHT = """
import sys
try: sys.exit(3)
except SystemExit: pass
"""
NEVER_FORGOTTEN = """
import sys
try: sys.exit(3)
except SystemExit as error: kept = error
"""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no data')", 1),
        ("raise ValueError('boom')", 1),
        ("raise KeyboardInterrupt", None),
        ("import sys\ntry: 1 / 0\nexcept ZeroDivisionError: sys.excepthook(*sys.exc_info())", 0),
        ("import sys; sys.excepthook = print; raise ValueError('boom')", 1),
        ("import sys; shown = sys.excepthook; sys.excepthook = lambda *it: shown(*it); raise ValueError('boom')", 1),
        ("import sys; sys.excepthook = print; raise KeyboardInterrupt", None),
        (CAUGHT, 0),
        (NEVER_FORGOTTEN, None),
        ("import os; os._exit(5)", None),
    ],
)
def test_exit_code_of_a_rank(tmp_path: Path, script: str, code: int | None) -> None:
    assert record_of(tmp_path, script).get("code") == code


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import sys; sys.exit('no data')", "no data"),
        ("import sys; sys.exit(3)", ""),
        ("import sys\ntry: sys.exit('no data')\nexcept SystemExit: pass", ""),
        ("import runpy; runpy._run_module_as_main('no_such_module')", "No module named no_such_module"),
    ],
)
def test_last_words_of_a_rank_are_recorded(tmp_path: Path, script: str, text: str) -> None:
    """As Python prints them: below a launcher, its agent does not see the standard error of a rank."""
    found = record_of(tmp_path, script)["text"]
    assert found.endswith(text)
    assert bool(found) == bool(text)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import sys\ntry: sys.exit(0)\nexcept SystemExit as error: sys.exit(error)", 0),
        ("import sys; sys.exit(SystemExit(5))", 5),
        ("import sys; sys.exit(type('Stop', (SystemExit,), {})(4))", 4),
        (
            "import pickle, sys\ntry: sys.exit(3)\nexcept SystemExit as error: sys.exit(pickle.loads(pickle.dumps(error)))",
            3,
        ),
        ("import sys\ntry: sys.exit(3)\nexcept BaseException as error: assert type(error) is SystemExit", 0),
        ("import sys, threading as t; made = t.Thread(target=sys.exit, args=(3,)); made.start(); made.join()", 0),
    ],
)
def test_exits_are_those_of_python(tmp_path: Path, script: str, code: int) -> None:
    """With the agent a program exits as it does without."""
    (tmp_path / "records").mkdir()
    variables = {"RANK": "1", "PYTHONPATH": str(AGENT_SOURCE), "TRAINYARD_RANK_RECORDS": str(tmp_path / "records")}
    made = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables},
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert (made.returncode, made.stderr) == (code, b"")


def test_two_copies_do_not_ask_each_other(tmp_path: Path) -> None:
    """A user's path has the agent's source, or that of another release."""
    copy = shutil.copytree(AGENT_SOURCE, tmp_path / "copy")
    fake_torch(tmp_path / "installed")
    path = os.pathsep.join(map(str, (AGENT_SOURCE, copy, tmp_path / "installed")))
    assert record_of(tmp_path, "import torch.distributed", PYTHONPATH=path)["code"] == 0


def test_traceback_is_recorded(tmp_path: Path) -> None:
    recorded = record_of(tmp_path, "def load(): raise ValueError('boom')\nload()")
    assert (recorded["rank"], recorded["program"], recorded["text"].endswith("ValueError: boom\n")) == (1, "-c", True)


def test_helper_of_a_rank_is_none(tmp_path: Path) -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; sys.exit(7)'])"
    assert record_of(tmp_path, script)["code"] == 0
    assert len([*(tmp_path / "records").iterdir()]) == 1


def test_rank_of_a_launcher_is_one(tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
subprocess.run([sys.executable, '-c', 'import sys; sys.exit(7)'], env={**os.environ, "RANK": "5"})
"""
    record_of(tmp_path, script)
    codes = {
        json.loads(file.read_text())["rank"]: json.loads(file.read_text())["code"]
        for file in [*(tmp_path / "records").iterdir()]
    }
    assert codes == {1: 0, 5: 7}


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID"])
def test_launchers_name_their_ranks(tmp_path: Path, name: str) -> None:
    """A launcher of Python, as horovodrun, starts them."""
    recorded = record_of(
        tmp_path, "import sys; sys.exit(7)", RANK="", TRAINYARD_RANK_PROCESS="1:,,,,,,,,", **{name: "5"}
    )
    assert (recorded["isRank"], recorded["rank"], recorded["code"]) == (True, 5, 7)


def test_first_program_without_a_rank_is_one(tmp_path: Path) -> None:
    """The command runs once for all GPUs; what the program starts itself is none."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', '1 / 0']); sys.exit(3)"
    recorded = record_of(tmp_path, script, RANK="")
    assert (recorded["isRank"], recorded["rank"], recorded["code"]) == (True, None, 3)
    assert len([*(tmp_path / "records").iterdir()]) == 1


def test_program_of_another_without_rank_records_nothing(tmp_path: Path) -> None:
    """A rank removes the variables for a helper."""
    assert record_of(tmp_path, "import sys; sys.exit(3)", RANK="", TRAINYARD_RANK_PROCESS="1:1,,,,,,,,") == {}


def test_program_that_reports_progress_is_a_rank(tmp_path: Path) -> None:
    script = "import trainyard_agent, sys; trainyard_agent.progress(3); sys.exit(3)"
    recorded = record_of(tmp_path, script, RANK="", TRAINYARD_PROGRESS_FILE=str(tmp_path / "4"))
    assert (recorded["isRank"], recorded["rank"], recorded["code"]) == (True, 4, 3)


def test_next_sitecustomize_runs_too(tmp_path: Path) -> None:
    hidden = tmp_path / "site"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.exits_with = 9")
    path = f"{AGENT_SOURCE}:{hidden}"
    assert record_of(tmp_path, "import sys; sys.exit(sys.exits_with)", PYTHONPATH=path)["code"] == 9


def test_formed_group_is_recorded(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    script = "import torch.distributed as dist; dist.init_process_group('gloo', rank=1, world_size=2)"
    assert record_of(tmp_path, script)["group"] == {"rank": 1, "size": 2, "formed": True}


def test_refused_group_is_recorded_as_tried(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    script = "import torch.distributed as dist; dist.init_process_group('refuse', rank=0, world_size=2)"
    assert record_of(tmp_path, script)["group"] == {"rank": 0, "size": 2, "formed": False}


def test_groups_of_torchft_are_not_recorded(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    (tmp_path / "torchft.py").touch()
    script = "import torchft, torch.distributed as dist; dist.init_process_group('gloo', rank=0, world_size=1)"
    assert "group" not in record_of(tmp_path, script)


def test_accelerate_without_a_group_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/__init__.py").touch()
    (tmp_path / "accelerate/state.py").write_text(
        "class PartialState:\n    def __init__(self): self.process_index, self.num_processes = 0, 1\n"
    )
    script = "from accelerate.state import PartialState; PartialState()"
    assert record_of(tmp_path, script)["group"] == {"rank": 0, "size": 1, "formed": True}


def test_record_is_json_whatever_it_holds(tmp_path: Path) -> None:
    recorded = record_of(tmp_path, r"raise ValueError('a \"quoted\" \\ text\x01\n\udcff ü')")
    assert 'ValueError: a "quoted" \\ text\x01\n' in recorded["text"]


@pytest.mark.parametrize(
    ("release", "left"), [("2.8.0", ["new", "old"]), ("2.9.1+cu128", ["new"]), ("2.11.0a0", ["new"])]
)
def test_settings_that_torch_renamed_have_one_name(tmp_path: Path, release: str, left: list[str]) -> None:
    """A newer torch warns of the old name in each rank. A value that somebody gave to the old one alone stays."""
    fake_torch(tmp_path)
    (tmp_path / "torch/__init__.py").write_text(f"__version__ = {release!r}")
    names = {
        "new": "TORCH_FR_BUFFER_SIZE",
        "old": "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "own": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    }
    script = (
        "import os, sys, torch.distributed as dist; dist.init_process_group('gloo', rank=0, world_size=1)\n"
        f"sys.exit(sum(1 << at for at, name in enumerate({[*names.values()]}) if name in os.environ))"
    )
    code = record_of(tmp_path, script, **dict.fromkeys(names.values(), "1"))["code"]
    assert [name for at, name in enumerate(names) if code & 1 << at] == [*left, "own"]
