"""The control group, the timeouts of groups, and their end without the deadlock of gloo's destructor."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_ALLOWANCE_SECONDS = 1800
"""The longest time that the agent leaves a rank without a report (`trainyard_agent.hang.ALLOWANCES`)."""
MARGIN_SECONDS = 300
"""For the agent to notice a hang and to stop the ranks, before the collectives' own timeout ends one of them."""
WATCH_VARIABLES = ("TRAINYARD_PROGRESS_FILE", "TRAINYARD_PROGRESS_DIR")
"""The agent sets one of them, and watches the progress of the ranks."""
LIMIT_VARIABLE = "TRAINYARD_HANG_TIMEOUT_SECONDS"

_kept: list[object] = []
"""The gloo backends of the groups that were destroyed last."""
# After this, threads that wait for the GIL no longer get it.
atexit.register(_kept.clear)


@dataclass(slots=True)
class _ControlGroup:
    group: dist.ProcessGroup
    timeout: timedelta


_control: list[_ControlGroup] = []
"""The control group, if there is one."""
atexit.register(_control.clear)


def default_group() -> dist.ProcessGroup:
    """Return the default group.

    Raises:
        RuntimeError: there is none.
    """
    if dist.group.WORLD is None:
        raise RuntimeError("there is no process group: call init_process_group first")
    return dist.group.WORLD


def control_group(at_least: timedelta | None = None) -> dist.ProcessGroup:
    """Return the gloo group of all processes for what they agree upon between steps: votes, checkpoints that are due, metrics.

    There is one for each default group. The first call creates it, and all processes make that call at the same time. Only the thread
    that trains uses it: collectives of several threads would start in another order on each process. A thread needs its own group.

    Args:
        at_least: the time that a process may wait for the others here. The longest that anyone has asked for holds.

    Raises:
        RuntimeError: there is no default group.
    """
    default_group()
    existing = next((each for each in _control if each.group in _groups(None)), None)
    if existing is None:
        timeout = max(each for each in (at_least, default_timeout(os.environ), dist.default_pg_timeout) if each)
        existing = _ControlGroup(dist.new_group(backend="gloo", timeout=timeout, group_desc="control"), timeout)
        _control[:] = [existing]
    elif at_least and at_least > existing.timeout:
        _set_timeout(at_least, existing.group)
    return existing.group


def default_timeout(environ: Mapping[str, str]) -> timedelta | None:
    """Return the timeout of collectives that the program does not set; None: torch's own.

    Below the agent, it is longer than any time that the agent allows: the agent finds hangs itself, and names the rank. A shorter one would
    end ranks that wait while rank 0 evaluates, or compiles for longer. Without the agent, or if its hang detection is off, torch's is best.
    """
    text = environ.get(LIMIT_VARIABLE, "")
    limit = int(text) if text.isascii() and text.isdigit() else None
    if limit == 0 or not any(environ.get(name) for name in WATCH_VARIABLES):
        return None
    return timedelta(seconds=max(LONGEST_ALLOWANCE_SECONDS, limit or 0) + MARGIN_SECONDS)


def set_timeout(timeout: timedelta) -> None:
    """Set the timeout of all groups that exist. A new group takes torch's default, not that of the group from which it is made."""
    for group in _groups(None):
        _set_timeout(timeout, group)


def _set_timeout(timeout: timedelta, group: dist.ProcessGroup) -> None:
    # Before torch 2.15, only a private function.
    change = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout  # noqa: SLF001 - as above
    change(timeout, group)
    for each in _control:
        if each.group is group:
            each.timeout = timeout


def destroy(group: dist.ProcessGroup | None = None) -> None:
    """Destroy a process group, or all of them, as `torch.distributed.destroy_process_group` does.

    Before torch 2.8, gloo's destructor waits for its threads while it holds the GIL. A thread that has just finished may wait for the GIL to
    release a tensor that Python has created: one exit in four hung after a last step that was a collective (pytorch/pytorch#154976). Two
    objects may be the last to hold gloo; the one that is kept here lets other threads run. It is kept until the next group is destroyed, or the
    process exits. Release other references to the group, for example of a model, before.
    """
    kept = [gloo for each in _groups(group) if (gloo := _gloo(each))]
    if group is None:
        # Its reference would run the destructor later.
        _control.clear()
    dist.destroy_process_group(group)
    _kept[:] = kept


def _groups(group: dist.ProcessGroup | None) -> list[Any]:
    return [group] if group else list(distributed_c10d._world.pg_map)  # noqa: SLF001 - torch has no public list


def _gloo(group: Any) -> object:
    try:
        return group._get_backend(torch.device("cpu"))  # noqa: SLF001 - nor a public way to this
    except RuntimeError:
        # The backend of devices only.
        return None
