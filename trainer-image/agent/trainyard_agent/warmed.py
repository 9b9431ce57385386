"""Run by the program's own interpreter, as `python -c SOURCE FD WORK`, SOURCE being `head.py`, `noted.py` and this file: imports what a
program imports, and forks ranks that then run it.

Nothing of this may be seen by the program: it is no module of `trainyard_agent` there, and of its frames none is in a traceback. It is
for the agent alone to say what is done; when the agent is gone, so is this process.
"""

from __future__ import annotations

import array
import gc
import importlib
import importlib.machinery
import json
import os
import socket
import sys
import time
import types
from contextlib import suppress
from typing import Any

from trainyard_agent.head import files_of, is_module, run_head
from trainyard_agent.noted import Noted

HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
PARENT_SECONDS = 5.0


def folder_of(module: bool, name: str) -> str:  # noqa: FBT001 - a field of the work
    """Where Python looks for the program's own modules."""
    return os.getcwd() if module else os.path.dirname(os.path.realpath(name))


def prepare(work: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Import what the program imports first. Returns the modules, and which of the variables in question were read meanwhile.

    Raises whatever says that no rank can be forked from here.
    """
    if sys.version_info < (3, 9):  # noqa: UP036 - it is the program's Python, not the agent's
        raise RuntimeError("of Python 3.8 it is not known how it starts a program")
    files, folder = files_of(work["module"], work["name"]), folder_of(work["module"], work["name"])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    before = open_files()
    with Noted() as noted:
        done = run_head(files, folder)
    if work["module"] and work["name"] in sys.modules:
        raise RuntimeError("what it imports imports the program itself")
    own = {entry.partition(".")[0] for entry in os.listdir(folder)}
    # It would be found first, if the program itself did the import.
    for name in sorted(own & {name.partition(".")[0] for name in sys.modules} - {"__main__"}):
        if is_module(folder, name):
            raise RuntimeError(f"the program has a module {name} of its own, beside the one that others import")
    if held := open_files() - before:
        raise RuntimeError(f"what it imports holds {min(held)} open")
    if devices := mapped_devices():
        raise RuntimeError(f"what it imports uses {min(devices)}")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # Those that know of fork have ended their threads for it, and start them again when they need them: OpenBLAS does.
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"what it imports has started threads ({threads - 1}) that a fork would lose")
    return done, noted.read(work["own"], tuple(work["own_prefixes"]))


def changed() -> dict[str, str | None]:
    """The variables that this process has set or removed (None) since it was started: Python does, and libraries do."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each)
        given = {name: value for name, _, value in pairs}
    return {name: os.environ.get(name) for name in {*given, *os.environ} if given.get(name) != os.environ.get(name)}


def open_files() -> set[str]:
    """What is open: two ranks that come from one process cannot read from it at their own pace."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    # An archive that modules come from, the agent's own say: who asks it for the versions of packages keeps it open, and reads no more.
    return {each for each in found - {*sys.path} if not each.startswith((*HARMLESS_DEVICES, "/proc/"))}


def mapped_devices() -> set[str]:
    """Of which memory is mapped: a GPU's driver does so."""
    with open("/proc/self/maps") as file:
        paths = {line[line.index("/") :].strip() for line in file if "/" in line}
    return {path for path in paths if path.startswith("/dev/") and not path.startswith(HARMLESS_DEVICES)}


def resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def step_back() -> bool:
    """Let others go first, as far as that can be taken back: a rank must not be slower than another. Whether they do."""
    # Another policy is somebody's wish.
    if not hasattr(os, "SCHED_IDLE") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            code = 0
        os._exit(code)
    # Back from SCHED_IDLE needs a privilege that containers have not as a rule; from SCHED_BATCH it needs none.
    idle = os.waitpid(pid, 0)[1] == 0
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE if idle else os.SCHED_BATCH, os.sched_param(0))
        return True
    return False


def serve(agent: socket.socket, work: dict[str, Any]) -> None:
    """For ever; returns in each rank that was forked, when it may begin."""
    agent.set_inheritable(False)
    show("trainyard-agent: imports for the next attempt")
    output = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
    stepped_back = False
    if work["delay"]:
        time.sleep(work["delay"])
        stepped_back = step_back()
    tell(agent, rested=True)
    if not agent.recv(1):
        os._exit(0)
    began = time.monotonic()
    # Some libraries look at these when they are imported.
    begin_main(work)
    try:
        done, read = prepare(work)
    except BaseException as error:  # noqa: BLE001 - a program's import may raise anything; a fresh process will say what
        tell(agent, unsafe=f"{type(error).__name__}: {error}"[:500])
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    gc.collect()
    gc.freeze()
    tell(agent, ready=done, read=read, seconds=time.monotonic() - began, resident=resident())
    while True:
        _, ancillary, _, _ = agent.recvmsg(1, socket.CMSG_SPACE(3 * 4))
        if not ancillary:
            os._exit(0)
        files = array.array("i", ancillary[0][2]).tolist()
        if is_rank(agent):
            agent.close()
            become(files, output, stepped_back=stepped_back)
            show(" ".join(work["words"]))
            return
        for each in files:
            os.close(each)


def is_rank(agent: socket.socket) -> bool:
    """Fork. True in the new rank: a child's child, whose parent ends, so that it becomes the agent's own, which hears of its end."""
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return False
    try:
        rank = os.fork()
        if rank != 0:
            tell(agent, pid=rank)
    except OSError:
        rank = -1
    if rank != 0:
        os._exit(0)
    return True


def become(files: list[int], output: int, *, stepped_back: bool) -> None:
    """A rank: what is its own, as the agent told. `files`: its words, its standard error, and a gate that opens when all are there."""
    words, error, gate = files
    os.setsid()
    os.dup2(error, 2)
    os.dup2(output, 1)
    with os.fdopen(words) as file:
        told: dict[str, Any] = json.load(file)
    if stepped_back:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if os.read(gate, 1) != b"g":
        os._exit(0)
    for each in (error, output, gate):
        os.close(each)
    end = time.monotonic() + PARENT_SECONDS
    while os.getppid() != told["agent"] and time.monotonic() < end:
        time.sleep(0.0005)
    own = changed()
    os.environ.clear()
    os.environ.update(told["environment"])
    for name, value in own.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    seed()


def seed() -> None:
    """Each process has random numbers of its own. Python sees to its own generator at a fork, these libraries when they are loaded."""
    for name, generator in (("numpy.random", None), ("torch", "default_generator")):
        made: Any = sys.modules.get(name)
        if made is not None:
            with suppress(Exception):
                (getattr(made, generator) if generator else made).seed()


def tell(agent: socket.socket, **words: object) -> None:
    """The agent, in one message."""
    agent.send(json.dumps(words).encode())


def begin_main(work: dict[str, Any]) -> None:
    """Put `__main__` as Python makes it in its place, and `sys.argv`."""
    made = types.ModuleType("__main__")
    vars(made)["__builtins__"] = __builtins__
    if sys.version_info < (3, 14):
        vars(made)["__annotations__"] = {}
    if not work["module"]:
        path = work["name"]
        path = path[2:] if path[:2] == "./" else path
        made.__file__ = path if path.startswith("/") else f"{os.getcwd()}/{path}"
        made.__loader__ = importlib.machinery.SourceFileLoader("__main__", made.__file__)
        vars(made)["__cached__"] = None
    sys.argv[:] = ["-m" if work["module"] else work["name"], *work["arguments"]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = work["words"]
    sys.modules["__main__"] = made


def show(words: str) -> None:
    """What `ps` shows of this process. There, the source of this file was the third word, so that there is room."""
    with suppress(Exception):
        import ctypes  # noqa: PLC0415 - not every Python has it

        with open("/proc/self/stat") as file:
            start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
        # A last byte that is not zero tells the kernel that this is one text, which ends at the first zero.
        text = words.encode(errors="replace")[: end - start - 2].ljust(end - start - 1, b"\0") + b"."
        ctypes.memmove(start, text, len(text))


def run_the_program(work: dict[str, Any]) -> None:
    """Whatever it raises is raised, and was said."""
    made = sys.modules["__main__"]
    importlib.invalidate_caches()
    try:
        if work["module"]:
            import runpy  # noqa: PLC0415 - not of use but here

            runpy._run_module_as_main(work["name"])  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` itself calls
        else:
            with open(made.__file__ or "", "rb") as file:
                source = file.read()
            exec(compile(source, made.__file__ or "", "exec", dont_inherit=True), made.__dict__)  # noqa: S102 - the program that is to be run
    except SystemExit:
        raise
    except BaseException as error:
        # It is by the exception's own that a traceback is written, whatever else is given.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        # Said it is, without these frames here. What is left is the end of a program by an exception, as Python does it.
        sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    # Its names are in use here, while the program has a `__main__` of its own.
    _kept = sys.modules["__main__"]
    _work = json.loads(sys.argv[2])
    serve(socket.socket(fileno=int(sys.argv[1])), _work)
    run_the_program(_work)
