"""The time by the API server's clock, from the `Date` header of its answers. Sends no requests, decides nothing.

Timestamps in objects come from the API server or from an earlier leader. This machine's clock may be minutes off and
may be set at any moment. It is used only until the first answer of the API server.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

_LOG = logging.getLogger(__name__)
_NOISE_SECONDS = 2.0
"""Offsets up to this are ignored: `Date` has whole seconds, and API servers of one cluster differ by about as much."""
_MAX_OFFSET_SECONDS = 366 * 86_400.0
"""A `Date` further off is ignored: TLS certificates would not validate between such machines."""
_LOG_THRESHOLD_SECONDS = 5.0
"""Change of the offset that is logged again."""
_MIN_LOG_INTERVAL_SECONDS = 60.0
"""Two servers with different clocks may answer in turn."""


def steady_clock() -> float:
    """Return monotonic seconds that include suspend, where the system has such a clock: a suspended machine must lose
    its lease.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(slots=True, eq=False)
class ServerClock:
    """The API server's clock. It advances by the steady clock and is corrected only by an answer that contradicts
    it.
    """

    wall: Callable[[], float] = time.time
    """This machine's wall clock, in seconds since 1970."""
    steady: Callable[[], float] = steady_clock
    """Monotonic seconds from an arbitrary start."""
    _zero: float = field(init=False)
    """The time in seconds since 1970 at which `steady` was 0."""
    _logged_offset: float | None = field(default=None, init=False)
    _logged_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._zero = self.wall() - self.steady()

    def now(self) -> datetime:
        """Return the time in UTC, accurate to two or three seconds."""
        return datetime.fromtimestamp(self._zero + self.steady(), UTC)

    def whole_second(self) -> datetime:
        """Return the time with whole seconds, the precision of timestamps in objects."""
        return self.now().replace(microsecond=0)

    @property
    def offset(self) -> float:
        """Seconds by which the API server's clock is ahead of this machine's clock."""
        return self._zero + self.steady() - self.wall()

    def observe(self, date: str | None, asked: float) -> None:
        """Correct the clock by an answer's `Date` (RFC 9110, 6.6.1) to a request sent at `asked` on the steady clock.
        Never raises.

        A header that is missing, malformed or a year off changes nothing.
        """
        if date is None or (server_seconds := _seconds(date)) is None:
            return
        answered = self.steady()
        # The server read its clock between request and answer, within that second. The middle of both is off by at most
        # `doubt`.
        zero, doubt = server_seconds + 0.5 - (asked + answered) / 2, 0.5 + (answered - asked) / 2
        if abs(zero + answered - self.wall()) > _MAX_OFFSET_SECONDS:
            return
        # Compared with the current offset and not with the machine's clock, so an offset near the threshold does not
        # flicker.
        if abs(zero - self._zero) > max(_NOISE_SECONDS, doubt):
            self._zero = zero
        self._log_offset_change(answered)

    def _log_offset_change(self, moment: float) -> None:
        offset = self.offset
        moved = abs(offset - (self._logged_offset or 0.0)) > (
            _NOISE_SECONDS if self._logged_offset is None else _LOG_THRESHOLD_SECONDS
        )
        if not moved or moment - self._logged_at < _MIN_LOG_INTERVAL_SECONDS:
            return
        self._logged_offset, self._logged_at = offset, moment
        if abs(offset) <= _NOISE_SECONDS:
            _LOG.info("this machine's clock agrees with the API server's clock again")
            return
        side = "behind" if offset > 0 else "ahead of"
        _LOG.warning(
            f"this machine's clock is {abs(offset):.0f} s {side} the API server's clock, which the operator uses; "
            "synchronize both machines by NTP (chrony, systemd-timesyncd)"
        )


@lru_cache(maxsize=8)
def _seconds(date: str) -> float | None:
    """Return a `Date` header in seconds since 1970, or None where it is malformed."""
    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    # The obsolete date format has no zone and means UTC.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
