"""JSON logs on standard error, with the job and its attempt on each line written while looking at it."""

import logging
import re
import sys
from contextvars import ContextVar

from pythonjsonlogger.json import JsonFormatter
from typing_extensions import override

_ATTEMPT = re.compile(r"Request attempt #(\d+)")
_job: ContextVar[str | None] = ContextVar("job", default=None)
_attempt: ContextVar[int | None] = ContextVar("attempt", default=None)


def about(job: str, attempt: int) -> None:
    """All that this task logs from now on is about this attempt of this job, until it is told otherwise.

    Not a context manager: what the loop says of a failed pass belongs to the job too.
    """
    _job.set(job)
    _attempt.set(attempt)


class _About(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        record.job, record.attempt = _job.get(), _attempt.get()
        return True


class _NoRepeats(logging.Filter):
    """kopf tells of each of its attempts, a kilobyte each, for ever. What is wrong is said by those who look at it, once."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        again = record.name.startswith("kopf.") and _ATTEMPT.match(record.getMessage())
        return not again or again[1] == "1"


def configure(level: str) -> None:
    """Send all logs through one handler."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_About())
    handler.addFilter(_NoRepeats())
    handler.setFormatter(
        JsonFormatter(
            ["asctime", "levelname", "name", "job", "attempt", "message"],
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        ),
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # kopf and aiohttp tell of each event and each probe; what matters of that is in the metrics.
    for noisy in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
