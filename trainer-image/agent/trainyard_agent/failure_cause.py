"""Tell what a rank's exception comes from: from its program or image, so that it would return in each attempt, or from outside. Pure.

As in `exit_cause`, the words of programs are interpreted here and nowhere else: the operator gets the cause as data.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PROGRAM = "program"
"""An exception of the program itself."""
VARIABLES = r"(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT|(?:SLURM|OMPI|PMI|PMIX|MPI|TF)_\w+|\w+_RANK|\w+_WORLD_SIZE)"
"""Variables of ranks, under the names of all launchers."""
DENIED = r"\[Errno (?:2|13|30)\] [^:\n]{1,80}: b?'"
"""No such file, permission denied, or a read-only file system. Bounded, so that the search takes linear time."""


class Mark(NamedTuple):
    """What the line of an exception says, and the cause that it points to."""

    cause: str
    words: re.Pattern[str]


MARKS = (
    Mark("noUserName", re.compile(r"getpwuid\(\): uid not found|No username set in the environment")),
    Mark("noTemporaryFolder", re.compile(rf"No usable temporary directory found|{DENIED}/(?:var/)?tmp(?:/|')")),
    Mark("noHome", re.compile(rf"{DENIED}/(?:root|nonexistent|\.\w+|home/\w+/\.\w+)(?:/|')")),
    Mark("readOnlyFolder", re.compile(r"\[Errno 30\] ")),
    Mark("permissionDenied", re.compile(r"^PermissionError: \[Errno 13\] ")),
    Mark("portInUse", re.compile(r"[Aa]ddress already in use|EADDRINUSE")),
    Mark(
        "nameNotResolved",
        re.compile(
            r"Name or service not known|Temporary failure in name resolution|No address associated with hostname"
        ),
    ),
    Mark(
        "unknownVariable",
        re.compile(rf"KeyError: '{VARIABLES}'$|environment variable {VARIABLES} expected, but not set"),
    ),
    Mark(
        "missingModule",
        re.compile(r"ModuleNotFoundError: |python[\d.]*: (?:Error while finding module|No module named)"),
    ),
    Mark(
        "missingLibrary",
        re.compile(
            r"ImportError: (?:(?!ImportError: ).)*?(?:cannot open shared object file|undefined symbol|not found \(req)"
        ),
    ),
    Mark("noCuda", re.compile(r"not compiled with CUDA enabled")),
    Mark("noAccelerator", re.compile(r"No CUDA GPUs are available|Found no NVIDIA driver")),
    Mark("syntaxError", re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")),
    Mark("missingFile", re.compile(r"^FileNotFoundError: ")),
    Mark(PROGRAM, re.compile(r"Expected all tensors to be on the same device")),
)
"""The first that applies decides."""
PROGRAM_EXCEPTIONS = frozenset(
    {"ArithmeticError", "AssertionError", "AttributeError", "Exception", "FloatingPointError", "ImportError"}
    | {"IndentationError", "IndexError", "IsADirectoryError", "KeyError", "LookupError", "ModuleNotFoundError"}
    | {"NameError", "NotADirectoryError", "NotImplementedError", "OverflowError", "RecursionError", "RuntimeError"}
    | {"SyntaxError", "TabError", "TypeError", "UnboundLocalError", "UnicodeDecodeError", "UnicodeEncodeError"}
    | {"ValueError", "ZeroDivisionError"}
)
"""Python's exceptions that do not come from a disk, a network, a device or a lack of memory. Libraries have many names for exceptions from there."""
OWN_MISTAKES = frozenset(
    {"AttributeError", "IndexError", "KeyError", "NameError", "NotImplementedError", "TypeError", "UnboundLocalError"}
)
"""Those whose text names parts of the program: `name 'store' is not defined` points to no network."""
SETTING_ERROR = re.compile(
    r"(?:^|\.)(?:\w{0,64}(?:Config|Configuration|Argument|Option|Schema|Scanner)\w{0,64}(?:Error|Exception)|ValidationError)$"
)
"""How libraries name exceptions of wrong settings."""
UNREADABLE_TEXT = re.compile(
    r"^(?:json\.(?:decoder\.)?JSONDecodeError: .*\(char [1-9]\d*\)$|tomllib\.TOMLDecodeError: |yaml\.parser\.ParserError: )"
)
"""A file of settings that is not well-formed. JSON that is wrong from its first character may be empty yet, or a server's page of an error."""
EXCEPTION = re.compile(
    r"^((?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Exit|Timeout|Fault|Failure))(?::|$)", re.MULTILINE
)
OUTSIDE = re.compile(
    r"CUDA|cuda|NCCL|nccl|cuDNN|CUDNN|CUBLAS|\bHIP\b|ROCm|\bXLA|\bECC\b|out of memory|allocate memory|[Cc]onnect|[Tt]im(?:ed? ?|e-)out"
    r"|[Rr]efused|[Uu]navailable|[Nn]etwork|[Gg]loo|[Ss]ocket|\bstore\b|[Rr]endezvous|[Rr]esolve|HTTP|https?:|\bSSL\b|DataLoader worker"
    r"|\b[Pp]eer\b|[Bb]roken pipe|\b[Dd]isk\b|No space|\bI/O\b|Input/output|[Ss]tale file|[Cc]orrupt|[Tt]emporar|[Tt]runcated|[Dd]ownload|[Rr]etr(?:y|ies)"
    r"|worker died|process group|killed"
)
"""Words for what may pass: devices, networks, stores, files that are being written."""


def failure_cause(exception: str, traceback: str, output: str) -> str:
    """Return the known cause of an exit, `program` for an error of the program itself; empty where it may come from outside.

    `exception`: the line that names it; empty where there is none. `traceback`: its text, chained exceptions included. `output`: the end
    of the standard error, whose last line counts where there is no traceback.
    """
    line = exception or output.strip().rpartition("\n")[2]
    raised = [match.group() for match in re.finditer(rf"{EXCEPTION.pattern}.*$", traceback, re.MULTILINE)]
    for mark in MARKS:
        if mark.words.search(line):
            return mark.cause
    if not exception or not raised:
        return ""
    return PROGRAM if all(map(_is_of_program, {exception, *raised})) else ""


def _is_of_program(line: str) -> bool:
    """Return whether the line of an exception shows that it comes from the program or its settings."""
    found = EXCEPTION.match(line)
    kind = found[1] if found else ""
    if kind in OWN_MISTAKES or (kind == "ImportError" and "cannot import name" in line):
        return True
    if UNREADABLE_TEXT.search(line):
        return not OUTSIDE.search(line)
    return (kind in PROGRAM_EXCEPTIONS or SETTING_ERROR.search(kind) is not None) and not OUTSIDE.search(line)
