"""Write JSON logs to standard error. Each line names the job and the attempt that it is about."""

import logging
import re
import sys
from contextvars import ContextVar

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

_ATTEMPT = re.compile(r"Request attempt #(\d+)")
_job: ContextVar[str | None] = ContextVar("job", default=None)
_attempt: ContextVar[int | None] = ContextVar("attempt", default=None)


def set_log_context(job: str, attempt: int) -> None:
    """Mark all further log lines of this task with this job and attempt, until the next call.

    Not a context manager: a line of the loop about a failed reconcile needs the job too.
    """
    _job.set(job)
    _attempt.set(attempt)


class _AddContext(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        record.job, record.attempt = _job.get(), _attempt.get()
        return True


class _DropRepeats(logging.Filter):
    """Drop kopf's lines about repeated requests, a kilobyte each. The caller of the request logs its failure once."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        repeated = record.name.startswith("kopf.") and _ATTEMPT.match(record.getMessage())
        return not repeated or repeated[1] == "1"


def configure(level: str) -> None:
    """Send all logs through one handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_AddContext())
    handler.addFilter(_DropRepeats())
    handler.setFormatter(
        JsonFormatter(
            ["asctime", "levelname", "name", "job", "attempt", "message"],
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        ),
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf and aiohttp log each event and each probe; the metrics have what matters of that.
    for noisy in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
