"""Read the file in which a program records its rank, its exit and its process group (`sitecustomize.py`). Nothing in it is trusted."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

from trainyard_agent.report import peek

MAX_RECORD_BYTES = 64 * 1024
MAX_NUMBER = 2**31
MAX_STEP = 2**63


class Membership(NamedTuple):
    """The largest process group of a process."""

    rank: int
    size: int
    formed: bool
    """Whether the group was formed, and not only tried."""


class RankRecord(NamedTuple):
    """What a process has recorded, and what the kernel knows of its exit."""

    pid: int
    rank: Optional[int]  # noqa: UP045 - Python 3.9
    """The rank that it was given; None where that has no number."""
    is_rank: bool
    """Whether it was given a rank itself, and is no helper of a process with the same rank."""
    owner: int
    """The PID of the process that was given the rank: itself, or the one that has started it."""
    program: str
    code: Optional[int] = None  # noqa: UP045 - Python 3.9
    text: str = ""
    """The traceback that has ended it."""
    at: float = 0.0
    """When it exited, by the monotonic clock."""
    group: Optional[Membership] = None  # noqa: UP045 - Python 3.9
    started_by: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The PID of the observed program that has started it."""
    trains: bool = False
    """Whether it has loaded a framework, and is no code on the command line: not a test, a tool or a server of the script."""
    loaded: bool = False
    """Whether it has loaded torch.distributed, which it records while it runs."""
    stopped_after: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The step after which all processes have to save, because one of them has to go; None: there is none, or the program goes on."""


def read_record(path: Path, pid: int) -> RankRecord | None:
    """Return what a process has recorded; None where that is malformed: programs may write anything there."""
    try:
        fields = json.loads(peek(str(path), lambda file: os.pread(file, MAX_RECORD_BYTES, 0)))
        return _record(fields, pid)
    except (AttributeError, OverflowError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _record(fields: Mapping[str, Any], pid: int) -> RankRecord:
    """Raises AttributeError, KeyError, OverflowError, TypeError and ValueError."""
    group = fields.get("group")
    code = fields.get("code")
    return RankRecord(
        pid,
        None if fields["rank"] is None else _number(fields["rank"], MAX_NUMBER),
        fields["isRank"] is True,
        _number(fields["owner"], MAX_NUMBER),
        str(fields.get("program", "")),
        None if code is None else _number(code, 255),
        str(fields.get("text", "")),
        float(fields.get("at", 0.0)),
        None
        if group is None
        else Membership(
            _number(group["rank"], MAX_NUMBER), _number(group["size"], MAX_NUMBER), group["formed"] is True
        ),
        None if fields.get("startedBy") is None else _number(fields["startedBy"], MAX_NUMBER),
        fields.get("trains") is True,
        fields.get("loaded") is True,
        None if fields.get("stoppedAfter") is None else _number(fields["stoppedAfter"], MAX_STEP),
    )


def _number(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"not an integer from 0 to {most}: {value!r}")
    return value
