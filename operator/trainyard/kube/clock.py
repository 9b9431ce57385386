"""The time by the API server's clock, as the `Date` of its answers tells it. Knows nothing of requests, decides nothing.

The times in objects are the API server's, or were written by whichever process led then. A machine's own clock may be minutes off, and
whoever sets it does so at any moment: it says what time it is until the first answer, and never again.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache

_LOG = logging.getLogger(__name__)
_NOISE = 2.0
"""Seconds. `Date` has whole ones, the servers of one cluster differ by as much, and nothing that is decided turns on them."""
_ABSURD = 366 * 86_400.0
"""Seconds. Of two machines that are further apart one would not take the other's certificate."""
_WORTH_TELLING = 5.0
"""Seconds by which the offset has to move to be told again."""
_SOONEST_TELLING = 60.0
"""Seconds. Two servers with different clocks may answer in turn."""


def steady_clock() -> float:
    """Seconds that go on while the machine sleeps, where the system can tell them: a laptop's lid must not stop a Lease."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(slots=True, eq=False)
class ServerClock:
    """The API server's clock. It goes on by the steady one between answers, and is moved only by an answer that contradicts it."""

    wall: Callable[[], float] = time.time
    """This machine's idea of the time, in seconds since 1970."""
    steady: Callable[[], float] = steady_clock
    """Seconds since whenever."""
    _zero: float = field(init=False)
    """The time, in seconds since 1970, at which `steady` was 0."""
    _told: float | None = field(default=None, init=False)
    _told_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._zero = self.wall() - self.steady()

    def now(self) -> datetime:
        """The time, in UTC, to the fraction of a second; right to two or three seconds."""
        return datetime.fromtimestamp(self._zero + self.steady(), UTC)

    def whole_second(self) -> datetime:
        """The time, as it is stored."""
        return self.now().replace(microsecond=0)

    @property
    def offset(self) -> float:
        """Seconds by which the API server's clock is ahead of this machine's."""
        return self._zero + self.steady() - self.wall()

    def heard(self, date: str | None, asked: float) -> None:
        """An answer has just come with this `Date` (RFC 9110, 6.6.1) to a request made at `asked` by the steady clock. Never raises.

        A header that is missing, cannot be read or is a year off changes nothing.
        """
        if date is None or (said := _seconds(date)) is None:
            return
        answered = self.steady()
        # At some moment between request and answer, and somewhere in that second: the middle of both is off by `doubt` at most.
        zero, doubt = said + 0.5 - (asked + answered) / 2, 0.5 + (answered - asked) / 2
        if abs(zero + answered - self.wall()) > _ABSURD:
            return
        # Compared with what is in use and not with the machine's clock: so an offset at the edge of the noise does not flicker.
        if abs(zero - self._zero) > max(_NOISE, doubt):
            self._zero = zero
        self._tell(answered)

    def _tell(self, moment: float) -> None:
        offset = self.offset
        moved = abs(offset - (self._told or 0.0)) > (_NOISE if self._told is None else _WORTH_TELLING)
        if not moved or moment - self._told_at < _SOONEST_TELLING:
            return
        self._told, self._told_at = offset, moment
        if abs(offset) <= _NOISE:
            _LOG.info("this machine's clock and the API server's agree again")
            return
        side = "behind" if offset > 0 else "ahead of"
        _LOG.warning(
            f"this machine's clock is {abs(offset):.0f} s {side} the API server's, which the operator goes by; "
            "let NTP (chrony, systemd-timesyncd) set the clocks of both machines"
        )


@lru_cache(maxsize=8)
def _seconds(date: str) -> float | None:
    """A `Date` in seconds since 1970; None where it is none."""
    try:
        said = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    # An old form has no zone: it is UTC all the same.
    return (said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()
