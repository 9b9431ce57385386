"""Observe the Python programs of a worker: how the processes of ranks exit, and which groups they form.

Python imports `sitecustomize` at its start. The agent's folder is the last of PYTHONPATH, so a user's own module of this name comes first,
and then nothing is observed. This module runs in the program's interpreter: it imports next to nothing, decides nothing, and no error of it
reaches the program. It writes one file a process into the folder in TRAINYARD_RANK_RECORDS, which `rank_records.py` reads.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import get_ident
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

FOLDER_VARIABLE, OWNER_VARIABLE = "TRAINYARD_RANK_RECORDS", "TRAINYARD_RANK_PROCESS"
FILE_VARIABLE = "TRAINYARD_PROGRESS_FILE"
WARM_VARIABLE = "TRAINYARD_WARM_PROCESS"
"""The agent sets it for the process from which it forks ranks. The ranks do not have it."""
OLD_NAMES = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "TORCH_FR_DUMP_TEMP_FILE",
}
"""torch 2.9 has renamed these settings, and warns of the old names. The agent sets both names, since it does not know the release."""
LIBRARIES = ("trainyard_agent.report", "trainyard_torch")
FRAMEWORKS = ("torch", "jax", "tensorflow", "paddle", "mindspore")
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID")
IDENTITY_VARIABLES = (*RANK_VARIABLES, "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
"""A launcher gives its ranks other values of these than it has itself. A helper of a rank inherits them all."""
JAX_MODULES = ("jax._src.distributed", "jax._src.xla_bridge", "jax.experimental.multihost_utils")
CONSTANTS = {None: "null", True: "true", False: "false"}
TEXT_CHARACTERS = 4096
"""Of a traceback, the end."""


class ExitMark:
    """Lives in a SystemExit, to notice its end: it has left the program only if no frame of Python is left when it ends.

    The exception itself stays a plain SystemExit: threading compares its type, and multiprocessing pickles it.
    """

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended

    def __del__(self) -> None:
        self._ended()

    def __reduce__(self) -> Any:  # type: ignore[explicit-override]  # no typing_extensions here
        return type(None), ()  # A copy, in whatever process, marks nothing.


class Observer:
    """What is known of this process."""

    def __init__(self) -> None:
        identity = ",".join(os.environ.get(name, "") for name in IDENTITY_VARIABLES)
        owner, _, inherited = os.environ.get(OWNER_VARIABLE, "").partition(":")
        self.pid, self.program = os.getpid(), program()
        self.is_warm_process = WARM_VARIABLE in os.environ
        self.is_helper = inherited == identity and owner != str(self.pid)
        """Whether a program has started this one that has the same rank, or none either."""
        is_first = owner in {"", str(self.pid)}
        has_rank = is_first or any(os.environ.get(name) for name in (*RANK_VARIABLES, "LOCAL_RANK"))
        self.is_rank = has_rank and not self.is_helper
        """A command that runs once for all ranks, without a launcher, is given no rank: no program of Python has started it."""
        if not self.is_helper:
            os.environ[OWNER_VARIABLE] = f"{self.pid}:{identity}"
        starter = int(owner) if owner.isdecimal() and owner != str(self.pid) else None
        self.fields: dict[str, Any] = {"isRank": self.is_rank, "startedBy": starter}

    def record(self, **fields: Any) -> None:
        """Add these fields to the record of this process, which may be a fork of the one that was started."""
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return
        pid = os.getpid()
        if pid != self.pid:
            self.pid, self.is_helper, self.is_rank, self.fields = pid, True, False, {"isRank": False}
        known = [os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)]
        rank = known[0] if known else os.path.basename(os.environ.get(FILE_VARIABLE, ""))
        owner = os.environ.get(OWNER_VARIABLE, "").partition(":")[0]
        self.fields.update(fields, rank=int(rank) if rank.isdecimal() else None, owner=int(owner or pid))
        path = f"{folder}/{pid}"
        with open(f"{path}.new", "w", encoding="utf-8", errors="replace") as file:
            file.write(encoded(self.fields))
        os.rename(f"{path}.new", path)

    def record_exit(self, code: int, text: str = "") -> None:
        """Record the exit code of a rank, and the text of the traceback that ends it. Who reports progress is one, too."""
        trains = self.is_rank or any(name in sys.modules for name in LIBRARIES)
        if trains and os.getpid() == self.pid:
            name, found = self.program, any(each in sys.modules for each in (*LIBRARIES, *FRAMEWORKS))
            fields = {"trains": found and name != "-c", "text": text[-TEXT_CHARACTERS:], "at": time.monotonic()}
            self.record(isRank=True, program=name, code=code, **fields)

    def record_group(self, rank: int, size: int, *, formed: bool) -> None:
        """Record the largest group of which this process is a part, or was to be a part."""
        known = self.fields.get("group") if os.getpid() == self.pid else None
        # With torchft each replica group has a process group of its own, and they train as one.
        if "torchft" not in sys.modules and (known is None or size >= known["size"]):
            self.record(group={"rank": rank, "size": size, "formed": formed})


class ExitWatch:
    """Records how this process exits: by an exception, by sys.exit, or at its end.

    A process that a signal kills records nothing. `raise SystemExit(1)` counts as an end: only the kernel knows better.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer, self._main_thread, self._shown = observer, get_ident(), sys.excepthook
        self._code, self._text, self._recorded = 0, "", False
        self._kept: list[Any] = []
        """A reference to the mark of the last SystemExit, while that exists."""

    def install(self) -> None:
        """Watch from now on."""

        def leave(status: object = None, /) -> NoReturn:
            # No variable here may hold the exception, whose traceback holds this frame.
            raise self._tracked(status)

        leave.__name__ = leave.__qualname__ = "exit"
        sys.exit, sys.excepthook = leave, self._excepthook
        atexit.register(self._at_exit)

    def _tracked(self, status: object) -> SystemExit:
        made = exit_exception(status)
        quietly(self._mark, made, exit_code(made))
        return made

    def _mark(self, made: SystemExit, number: int) -> None:
        # Python prints it: for a missing module of `python -m`, for example.
        text = made.code if isinstance(made.code, str) else ""
        if get_ident() == self._main_thread:
            made.__dict__["_trainyard_mark"] = set_mark = ExitMark(lambda: self._ended(number, text))
            self._kept[:] = [ref(set_mark)]

    def _ended(self, number: int, text: str) -> None:
        self._kept.clear()
        # The frames of the mark and of the lambda are the only ones.
        if sys._getframe(2).f_back is None:  # noqa: SLF001 - inspect takes its time to import
            self._code, self._text = number, text

    def _excepthook(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        # Python sets `last_value` to what ends the program. A program may also have the hook print what it has caught.
        if getattr(sys, "last_value", None) is error:
            quietly(self._record_last, kind, error, trace)
        self._shown(kind, error, trace)

    def _record_last(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        self._recorded = True
        # It exits on request. Python keeps a note of it, which is lost where an import evaluates text.
        if not issubclass(kind, KeyboardInterrupt):
            record_exception(self._observer, kind, error, trace)

    def _at_exit(self) -> None:
        # While the exception of sys.exit exists, it is not known whether the program has caught it.
        if self._recorded or self._kept:
            return
        # Another hook may have come in the place of this one, as that of `rich` does.
        error = getattr(sys, "last_value", None)
        if error is not None:
            quietly(self._record_last, type(error), error, error.__traceback__)
        else:
            quietly(self._observer.record_exit, self._code, self._text)


def exit_exception(status: object) -> SystemExit:
    """Return the exception that sys.exit raises: an exception of this kind is raised itself."""
    if isinstance(status, SystemExit):
        return status
    return SystemExit() if status is None else SystemExit(status)


def exit_code(made: SystemExit) -> int:
    """Return the exit code of a process that ends by this exception."""
    if made.code is None:
        return 0
    return made.code & 0xFF if isinstance(made.code, int) else 1


def record_exception(observer: Observer, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Record that an exception ends this process. At once: it may crash while it exits."""
    import traceback  # noqa: PLC0415 - few processes need it

    observer.record_exit(1, "".join(traceback.format_exception(kind, error, trace)))


def watch_torch(observer: Observer, module: Any) -> None:
    """Record that this process has loaded torch, and the process groups that torch forms."""
    import functools  # noqa: PLC0415 - torch has imported it

    original = module.init_process_group
    # What the warm process imports may read no variable of a rank.
    if observer.is_rank and not observer.is_warm_process:
        observer.record(loaded=True)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        quietly(drop_old_names)
        # Before the call, which may fail: two programs that use one port, for example.
        if kwargs.get("rank", -1) >= 0 and kwargs.get("world_size", -1) > 0:
            quietly(lambda: observer.record_group(kwargs["rank"], kwargs["world_size"], formed=False))
        made = original(*args, **kwargs)
        quietly(lambda: observer.record_group(module.get_rank(), module.get_world_size(), formed=True))
        return made

    module.init_process_group = init_process_group


def drop_old_names() -> None:
    """Remove the old name of a setting that has the same value under its new name, where torch knows that one."""
    release = tuple(map(int, sys.modules["torch"].__version__.split(".")[:2]))
    for old, new in OLD_NAMES.items():
        if release >= (2, 9) and old in os.environ and os.environ[old] == os.environ.get(new):
            del os.environ[old]


def watch_accelerate(observer: Observer, module: Any) -> None:
    """Record the size with which Accelerate trains: where that is 1, it forms no process group."""
    import functools  # noqa: PLC0415 - accelerate has imported it

    original = module.PartialState.__init__

    @functools.wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        quietly(lambda: observer.record_group(self.process_index, self.num_processes, formed=True))

    module.PartialState.__init__ = initialize


def watch_jax(observer: Observer, module: Any) -> None:
    """Record the group of a JAX process, and the step after which it stops."""
    import trainyard_jax  # noqa: PLC0415 - few programs need it

    trainyard_jax.watch(observer, module)


class Finder:
    """Finds the modules that are watched, by the other finders."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._finding: set[str] = set()
        """The modules that the other finders are asked for. Some of them ask all finders in turn, as a second one of these does."""
        self._watched: dict[str, Callable[[Observer, Any], None]] = {
            "torch.distributed.distributed_c10d": watch_torch,
            "accelerate.state": watch_accelerate,
            **dict.fromkeys(JAX_MODULES, watch_jax),
        }

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec, whose loader also watches it."""
        watch = self._watched.get(name)
        if watch is None or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = next(filter(None, (finder.find_spec(name, path, target) for finder in [*sys.meta_path])), None)
        finally:
            self._finding.discard(name)
        load = getattr(spec and spec.loader, "exec_module", None)
        if load is None:
            return spec

        def exec_module(module: Any) -> None:
            load(module)
            quietly(watch, self._observer, module)

        quietly(setattr, spec.loader, "exec_module", exec_module)  # type: ignore[union-attr]  # has a loader
        return spec


def encoded(value: Any) -> str:
    """Return the value as JSON. The module `json` would take longer to import than Python takes to start a program."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{encoded(name)}:{encoded(each)}" for name, each in value.items()) + "}"
    if isinstance(value, str):
        escaped = (rf"\u{ord(c):04x}" if c < " " or c in {'"', "\\"} else c for c in value)
        return '"' + "".join(escaped) + '"'
    return CONSTANTS.get(value, "") if value is None or isinstance(value, bool) else repr(value)


def quietly(function: Callable[..., object], *args: Any) -> None:
    """Call a function. Nothing that goes wrong here may reach the program."""
    try:  # noqa: SIM105 - contextlib is one more import for each program
        function(*args)
    except Exception:  # noqa: BLE001, S110 - the program goes on unobserved
        pass


def observe() -> None:
    """Start to observe this process."""
    observer = Observer()
    sys.meta_path.insert(0, Finder(observer))
    if os.environ.get(FOLDER_VARIABLE) and not observer.is_helper:
        if observer.is_rank:
            observer.record(program=observer.program)
        ExitWatch(observer).install()


def program() -> str:
    """Return the script or module of this process; `-c` for code of the command line."""
    with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
        words = file.read().split("\0")[1:]
    return next((word for word in words if word == "-c" or not word.startswith("-")), "")


def import_next() -> None:
    """Import the `sitecustomize` that this one hides, of the image for example. Raises what it raises."""
    own = os.path.dirname(os.path.abspath(__file__))
    hidden = sys.modules.pop("sitecustomize", None)
    before, sys.path[:] = sys.path[:], [entry for entry in sys.path if os.path.abspath(entry or ".") != own]
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden
    finally:
        # The module may have changed the path.
        added = [entry for entry in sys.path if entry not in before]
        sys.path[:] = [*before, *added]


def register_stacks() -> None:
    """Have this process write its stacks on request."""
    import trainyard_stacks  # noqa: PLC0415 - what it needs may be missing, and the rest still works

    trainyard_stacks.register()


if __name__ == "sitecustomize":
    quietly(observe)
    quietly(register_stacks)
    import_next()
