"""Which traceback in a program's output caused its exit, in the formats that Python writes."""

import subprocess
import sys

import pytest

from trainyard_agent.tracebacks import BEGIN, MAX_LINES, last

ONE = f'{BEGIN}\n  File "a.py", line 1, in <module>\n    f()\nValueError: one'
TWO = f'{BEGIN}\n  File "b.py", line 2, in g\n    g()\nRuntimeError: two\nwith a second line'
HANDLING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("output", "text", "exception"),
    [
        (f"step 1\n{ONE}\n", ONE, "ValueError: one"),
        (f"{ONE}\nhandled, going on\n{TWO}", TWO, "RuntimeError: two"),
        (f"{ONE}{HANDLING}{TWO}", f"{ONE}{HANDLING}{TWO}", "RuntimeError: two"),
        (f"{TWO}\nlater\n{ONE}{HANDLING}{ONE}\n[W] a warning\n", f"{ONE}{HANDLING}{ONE}", "ValueError: one"),
        (f"{BEGIN}\nKeyboardInterrupt", f"{BEGIN}\nKeyboardInterrupt", "KeyboardInterrupt"),
        (f'{BEGIN}\n  File "a.py", line 1, in f', f'{BEGIN}\n  File "a.py", line 1, in f', ""),
        (BEGIN, BEGIN, ""),
        ("12:00 " + ONE.replace("\n", "\n12:00 "), "12:00 " + ONE.replace("\n", "\n12:00 "), "ValueError: one"),
    ],
)
def test_last_traceback_includes_its_chain(output: str, text: str, exception: str) -> None:
    found = last(output)
    assert found is not None
    assert (found.text, found.exception) == (text, exception)


@pytest.mark.parametrize("output", ["", "no traceback here", "Traceback"])
def test_output_without_traceback_gives_none(output: str) -> None:
    assert last(output) is None


RAISES = "\nraise ValueError('one')"
PROGRAMS = {
    "later thread exception": "import threading, time\ndef f():\n    time.sleep(0.3); raise OSError('aside')\nthreading.Thread(target=f).start()"
    + RAISES,
    "exit handler": "import atexit\ndef f(): raise OSError('aside')\natexit.register(f)" + RAISES,
    "object finalizer": "class A:\n    def __del__(self): raise OSError('aside')\na = A()" + RAISES,
    "warning": "import atexit, warnings\natexit.register(lambda: warnings.warn('aside'))" + RAISES,
    "task that was never awaited": "import asyncio, gc\nasync def g(): raise OSError('aside')\nasync def f():\n    t = asyncio.ensure_future(g()); await asyncio.sleep(0.01); del t; gc.collect()\nasyncio.run(f())"
    + RAISES,
    "logged exception": "import logging\ntry: 1/0\nexcept ZeroDivisionError: logging.exception('aside')" + RAISES,
    "exception notes": "e = ValueError('one')\ne.add_note('more:\\n  indented')\nraise e",
    "message of several lines": "raise ValueError('one\\nfield\\n  Input should be an integer\\n    For further information')",
    "DataLoader worker": f"raise RuntimeError('Caught ValueError in DataLoader worker process 0.\\nOriginal ' + {ONE!r})",
    "torch spawn": f"raise RuntimeError('\\n\\n-- Process 1 terminated with the following error:\\n' + {ONE!r})",
    "another process": "import concurrent.futures as c\ndef f(): raise ValueError('one')\nwith c.ProcessPoolExecutor(1) as p: p.submit(f).result()",
    "deep recursion": "def f(n): f(n + 1)\ntry: f(0)\nexcept RecursionError as e: raise ValueError('one') from e",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=[*PROGRAMS])
def test_other_output_is_not_the_exception(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    found = last(ended.stderr)
    assert ended.returncode == 1
    assert found is not None, ended.stderr
    assert found.exception == "ValueError: one", ended.stderr
    assert "aside" not in found.text or "logging" in program


def test_exception_message_has_a_line_limit() -> None:
    keys = [f"\tmissing key {n}" for n in range(100)]
    found = last("\n".join([ONE, *keys]))
    assert found is not None
    assert found.text.splitlines()[-1] == keys[MAX_LINES - 1]
    assert found.after == 100 - MAX_LINES
    assert last(f"{ONE}\n{'x' * 5000}\n") == (ONE, "ValueError: one", 1)


def test_thread_exception_is_used_as_a_fallback() -> None:
    found = last(f"Exception in thread Thread-1:\n{ONE}\nstep 7\n")
    assert found is not None
    assert found.exception == "ValueError: one"


@pytest.mark.parametrize("margin", ["", "x = 1\n"])
def test_exception_group_keeps_its_members(margin: str) -> None:
    program = f"{margin}raise ExceptionGroup('both', [ValueError('one'), ExceptionGroup('inner', [OSError('two')])])"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    found = last(f"step 1\n{output}bye\n")
    assert found is not None
    assert found.exception == "ExceptionGroup: both (2 sub-exceptions)"
    assert found.text == output.rstrip()
    assert {"ValueError: one", "OSError: two"} <= {line.strip(" |") for line in found.text.splitlines()}
