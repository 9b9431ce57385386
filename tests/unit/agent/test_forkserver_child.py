"""Forked ranks behave like started ranks: only their start is faster."""

import re
import sys
from pathlib import Path

import pytest

from tests.unit.agent.fake_operator import FakeOperator
from tests.unit.agent.warm_start_run import READY, run_attempt

PRINT_STATE = """
import os, signal, sys, threading
OWN = (
    *("TRAINYARD_PROGRESS_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("TRAINYARD_RANK_RECORDS", "TRAINYARD_RANK_PROCESS"),
)
def show(*words): print(*words, sep='\\n')
show(sys.argv, sys.path, getattr(sys, "orig_argv", None), sys.executable, sys.flags, __name__, __file__, __spec__, __package__)
show(sorted(globals()), type(__loader__), __doc__, __builtins__)
show(sorted((name, value) for name, value in os.environ.items() if name not in OWN))
show(os.getcwd(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(), sys.stdin.read())
show([(each, signal.getsignal(each)) for each in (2, 10, 13, 15, 17)], threading.current_thread(), threading.active_count())
show(sorted(os.listdir("/proc/self/fd")), sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.write_through)
show(os.sched_getscheduler(0), os.nice(0), "trainyard_agent" in sys.modules, sys.modules["__main__"].__dict__ is globals())
show(os.popen(f"ps -o args= -p {os.getpid()}").read().replace("pkg/../", ""), open("/proc/self/comm").read())
show(os.readlink("/proc/self/fd/0"), os.readlink("/proc/self/fd/1")[:5], os.readlink("/proc/self/fd/2")[:5])
"""
PROGRAMS = {
    "process state": PRINT_STATE,
    "exception": "def f(): return 1 / 0\n\ndef g():\n    f()\ng()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('why') from error",
    "sys.excepthook": "import sys\nsys.excepthook = lambda kind, value, tb: print('hook', kind, tb.tb_lineno, file=sys.stderr)\n1 / 0",
    "sys.exit with text": "import sys\nsys.exit('a text')",
    "sys.exit with code": "import sys\nsys.exit(7)",
    "os._exit": "import os\nprint('lost')\nos._exit(9)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "SIGKILL": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "segmentation fault": "import ctypes\ndef deep(): ctypes.string_at(0)\ndeep()",
    "exit handlers and threads": "import atexit, threading, time\natexit.register(print, 'at exit')\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')",
    "unbuffered output": "import os\nprint('buffered')\nos.write(1, b'raw\\n')",
    "pickle": "import pickle\nclass A: pass\nassert type(pickle.loads(pickle.dumps(A()))) is A\nprint(A)",
    "spawned processes": "import multiprocessing as mp, sys\ndef work(x): return x * x, sys.argv\n"
    "if __name__ == '__main__':\n    with mp.get_context('spawn').Pool(1) as pool: print(pool.map(work, [2, 3]))",
    "forked processes": "import multiprocessing as mp\ndef work(x): return x * x\n"
    "if __name__ == '__main__':\n    with mp.get_context('fork').Pool(1) as pool: print(pool.map(work, [2, 3]))",
    "program modules": "import beside\nprint(beside.__file__, beside.__name__)",
    "agent library": "import trainyard_agent\ntrainyard_agent.progress(3)\nprint(trainyard_agent.__file__)",
    "recursion": "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: print('deep')",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", ["file", "module"])
def test_forked_rank_behaves_like_started_rank(
    program: Path, folder: Path, operator: FakeOperator, name: str, how: str
) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg/__init__.py").touch()
    (folder / "beside.py").touch()
    path = folder / "pkg/script.py"
    path.write_text(PROGRAMS[name] + "\n")
    (folder / "pkg/beside.py").touch()
    words = ["-m", "pkg.script"] if how == "module" else ["pkg/script.py"]
    command = [sys.executable, "-B", *words, "--lr", "0.1"]
    fresh, _ = run_attempt(program, folder, operator, *command, TRAINYARD_WARM_START="0")
    warm, line = run_attempt(program, folder, operator, *command, TRAINYARD_WARM_START="1")
    assert READY in line
    strip = ("TRAINYARD_WARM_START', '0'", "TRAINYARD_WARM_START', '1'")
    assert (warm.code, normalized(warm.message)) == (fresh.code, normalized(fresh.message))
    assert normalized(warm.output).splitlines() == normalized(fresh.output).replace(*strip).splitlines()
    assert normalized(warm.errors) == normalized(fresh.errors)


def normalized(output: str) -> str:
    """Return output without addresses and without the frames that called the program."""
    return re.sub(
        r'0x[0-9a-f]+|started [0-9]+|  File "<(string|frozen runpy)>", line [0-9]+ in .*', "", output
    ).rstrip()
