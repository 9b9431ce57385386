"""A process on a GPU exits soon after the exception that ends it, whatever else waits in it."""

import os
import subprocess
import sys

import pytest

from trainyard_torch.exit_after_exception import EXIT_HANDLERS_SECONDS

PROGRAM = """
import atexit, sys, threading
from trainyard_torch import exit_after_exception

def shown(kind, error, trace):
    print("hook:", error, file=sys.stderr)

sys.excepthook = shown
atexit.register(print, "exit handler")
# It reads from a file server that does not answer.
threading.Thread(target=threading.Event().wait).start()
exit_after_exception.EXIT_HANDLERS_SECONDS = 0.3
def train():
    try:
        raise RuntimeError("CUDA error: it is lost")
    except RuntimeError as error:
        exit_after_exception.exit_soon_after(error)
        raise
"""


def end_of(program: str) -> tuple[int, str, str]:
    command, environ = (
        [sys.executable, "-c", PROGRAM + program],
        {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    made = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    return made.returncode, made.stdout, made.stderr


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("train()", "hook: CUDA error: it is lost\n"),
        ("try:\n    train()\nexcept RuntimeError as e:\n    raise ValueError('wrapped') from e", "hook: wrapped\n"),
        ("try:\n    train()\nfinally:\n    raise ValueError('another')", "hook: another\n"),
    ],
)
def test_blocked_threads_are_not_joined(program: str, text: str) -> None:
    assert end_of(program) == (1, "exit handler\n", text)


def test_exit_handlers_have_a_limit() -> None:
    code, out, _ = end_of("atexit.register(threading.Event().wait)\ntrain()")
    assert (code, out) == (1, "")
    assert EXIT_HANDLERS_SECONDS <= 10


def test_handled_exception_leaves_the_program_alone() -> None:
    program = "import os\ntry:\n    train()\nexcept RuntimeError:\n    print('goes on', flush=True)\nsys.excepthook(ValueError, ValueError('x'), None)\nprint('still', flush=True)\nos._exit(7)"
    assert end_of(program) == (7, "goes on\nstill\n", "hook: x\n")
