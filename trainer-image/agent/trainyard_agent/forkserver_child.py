"""Import what a program imports, and fork ranks that then run it. The program's own interpreter runs this, as `python -c SOURCE FD WORK`.

SOURCE is `import_prefix.py`, `env_reads.py` and this file in one text. The program sees nothing of it: it is no module of
`trainyard_agent` there, and none of its frames is in a traceback. It acts on the agent's requests only, and exits with the agent.
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

from trainyard_agent.env_reads import EnvironmentReads
from trainyard_agent.import_prefix import files_of, is_module, run_prefix

HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
PARENT_SECONDS = 5.0


def folder_of(module: bool, name: str) -> str:  # noqa: FBT001 - a field of the work
    """Return where Python looks for the program's own modules."""
    return os.getcwd() if module else os.path.dirname(os.path.realpath(name))


def prepare(work: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Import what the program imports first. Returns the modules, and which variables of a rank or attempt were read meanwhile.

    Raises whatever means that no rank can be forked from here.
    """
    if sys.version_info < (3, 9):  # noqa: UP036 - it is the program's Python, not the agent's
        raise RuntimeError("Python 3.8 and older are not supported")
    files, folder = files_of(work["module"], work["name"]), folder_of(work["module"], work["name"])
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)
    before = open_files()
    with EnvironmentReads() as reads:
        done = run_prefix(files, folder)
    if work["module"] and work["name"] in sys.modules:
        raise RuntimeError("a module that it imports imports the program itself")
    local = {entry.partition(".")[0] for entry in os.listdir(folder)}
    # The program itself would import its own.
    for name in sorted(local & {name.partition(".")[0] for name in sys.modules} - {"__main__"}):
        if is_module(folder, name):
            raise RuntimeError(f"the program has a module {name} of its own, beside the one that libraries import")
    if held := open_files() - before:
        raise RuntimeError(f"a module that it imports holds {min(held)} open")
    if devices := mapped_devices():
        raise RuntimeError(f"a module that it imports uses {min(devices)}")
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # Libraries that handle fork have stopped their threads by now, and start them again when needed: OpenBLAS does.
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"the modules that it imports have started threads ({threads - 1}) that a fork would lose")
    return done, reads.found(work["per_rank_variables"], tuple(work["per_rank_prefixes"]))


def changed() -> dict[str, str | None]:
    """Return the variables that this process has set or removed (None) since it was started: Python does, and libraries do."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each)
        given = {name: value for name, _, value in pairs}
    return {name: os.environ.get(name) for name in {*given, *os.environ} if given.get(name) != os.environ.get(name)}


def open_files() -> set[str]:
    """Return the open files: two ranks that are forked from one process would share their position."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    # But for archives of modules, such as the agent's: to look up package versions in one leaves it open, and unread.
    return {each for each in found - {*sys.path} if not each.startswith((*HARMLESS_DEVICES, "/proc/"))}


def mapped_devices() -> set[str]:
    """Return the devices whose memory is mapped: a GPU's driver does so."""
    with open("/proc/self/maps") as file:
        paths = {line[line.index("/") :].strip() for line in file if "/" in line}
    return {path for path in paths if path.startswith("/dev/") and not path.startswith(HARMLESS_DEVICES)}


def resident() -> int:
    """Return the bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def lower_priority() -> bool:
    """Yield the CPU to others, as far as that can be undone: a forked rank must not be slower. Returns whether it did."""
    # Another policy was set on purpose.
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
    # To leave SCHED_IDLE needs a privilege that containers usually lack; to leave SCHED_BATCH needs none.
    idle = os.waitpid(pid, 0)[1] == 0
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE if idle else os.SCHED_BATCH, os.sched_param(0))
        return True
    return False


def serve(agent: socket.socket, work: dict[str, Any]) -> None:
    """Fork ranks for ever. Returns in each rank, when it may start."""
    agent.set_inheritable(False)
    show("trainyard-agent: warm start")
    output = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
    has_lower_priority = False
    if work["delay"]:
        time.sleep(work["delay"])
        has_lower_priority = lower_priority()
    send(agent, rested=True)
    if not agent.recv(1):
        os._exit(0)
    began = time.monotonic()
    # Some libraries look at `__main__` and `sys.argv` when they are imported.
    set_up_main(work)
    try:
        done, read = prepare(work)
    except BaseException as error:  # noqa: BLE001 - a program's import may raise anything; a fresh process will say what
        send(agent, unsafe=f"{type(error).__name__}: {error}"[:500])
        os._exit(0)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    gc.collect()
    gc.freeze()
    send(agent, ready=done, read=read, seconds=time.monotonic() - began, resident=resident())
    while True:
        _, ancillary, _, _ = agent.recvmsg(1, socket.CMSG_SPACE(3 * 4))
        if not ancillary:
            os._exit(0)
        files = array.array("i", ancillary[0][2]).tolist()
        if is_rank(agent):
            agent.close()
            become(files, output, has_lower_priority=has_lower_priority)
            show(" ".join(work["words"]))
            return
        for each in files:
            os.close(each)


def is_rank(agent: socket.socket) -> bool:
    """Fork. True in the new rank: a grandchild, whose parent exits, so that the agent becomes its parent and reaps it."""
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)
        return False
    try:
        rank = os.fork()
        if rank != 0:
            send(agent, pid=rank)
    except OSError:
        rank = -1
    if rank != 0:
        os._exit(0)
    return True


def become(files: list[int], output: int, *, has_lower_priority: bool) -> None:
    """Become a rank. `files`: its environment, its standard error, and a gate that opens when all ranks are forked."""
    content, error, gate = files
    os.setsid()
    os.dup2(error, 2)
    os.dup2(output, 1)
    with os.fdopen(content) as file:
        given: dict[str, Any] = json.load(file)
    if has_lower_priority:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    if os.read(gate, 1) != b"g":
        os._exit(0)
    for each in (error, output, gate):
        os.close(each)
    end = time.monotonic() + PARENT_SECONDS
    while os.getppid() != given["agent"] and time.monotonic() < end:
        time.sleep(0.0005)
    own_changes = changed()
    os.environ.clear()
    os.environ.update(given["environment"])
    for name, value in own_changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    with suppress(Exception):
        import trainyard_stacks  # noqa: PLC0415 - where the agent's folder is in the path of the program

        trainyard_stacks.register()
    seed()


def seed() -> None:
    """Give each process random numbers of its own. Python seeds its own generator at a fork, these libraries when they are imported."""
    for name, generator in (("numpy.random", None), ("torch", "default_generator")):
        made: Any = sys.modules.get(name)
        if made is not None:
            with suppress(Exception):
                (getattr(made, generator) if generator else made).seed()


def send(agent: socket.socket, **fields: object) -> None:
    """Send the agent one message."""
    agent.send(json.dumps(fields).encode())


def set_up_main(work: dict[str, Any]) -> None:
    """Set `__main__` and `sys.argv` as Python does when it starts a program."""
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
    """Set what `ps` shows of this process. The source of this file was its third argument, so that there is room."""
    with suppress(Exception):
        import ctypes  # noqa: PLC0415 - not every Python has it

        with open("/proc/self/stat") as file:
            start, end = map(int, file.read().rpartition(")")[2].split()[45:47])
        # A last byte that is not zero makes the kernel show one text, up to the first zero.
        text = words.encode(errors="replace")[: end - start - 2].ljust(end - start - 1, b"\0") + b"."
        ctypes.memmove(start, text, len(text))


def run_program(work: dict[str, Any]) -> None:
    """Run it. Whatever it raises is raised, after it was printed."""
    made = sys.modules["__main__"]
    importlib.invalidate_caches()
    try:
        if work["module"]:
            import runpy  # noqa: PLC0415 - used only here

            runpy._run_module_as_main(work["name"])  # type: ignore[attr-defined]  # noqa: SLF001 - what `python -m` itself calls
        else:
            with open(made.__file__ or "", "rb") as file:
                source = file.read()
            exec(compile(source, made.__file__ or "", "exec", dont_inherit=True), made.__dict__)  # noqa: S102 - the program itself
    except SystemExit:
        raise
    except BaseException as error:
        # Tracebacks are written from the exception's own, whatever else is passed.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        # It is printed now, without the frames of this file. Python then exits as after any exception.
        sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    # Keep the names of this file, while the program has a `__main__` of its own.
    _kept = sys.modules["__main__"]
    _work = json.loads(sys.argv[2])
    serve(socket.socket(fileno=int(sys.argv[1])), _work)
    run_program(_work)
