"""What one attempt and the operator exchange, and how a failure is passed on. Types only."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainyard_agent.orders import OperatorView
from trainyard_agent.protocol import StopProgress


class Failure(NamedTuple):
    """Why an attempt failed in this worker."""

    code: int
    message: str
    """The termination message."""
    at: float
    """When, by the monotonic clock."""
    is_worth_writing: bool = True
    """Whether the message says more than the exit code does."""


class OperatorLink(NamedTuple):
    """The link to the operator, for one attempt."""

    must_stop: Callable[[], bool]
    """Returns whether the ranks have to exit now."""
    report_failure: Callable[[Failure], object]
    """Called when a rank has failed, before the others are stopped."""
    report_stop: Callable[[StopProgress], object]
    """Called with how far this worker is in a coordinated stop."""
    report_idle: Callable[[bool], object]
    """Called when all ranks have stopped to do anything, or do something again."""
    pending_stacks: Callable[[], str]
    """Returns the request for the ranks' stacks that is yet to be met; empty where there is none."""
    report_stacks: Callable[[str], object]
    """Called with a request that was met."""
    view: Callable[[], OperatorView]
    """Returns what is known of the operator."""
