"""Who may act: one process of several, by a Lease that it keeps renewing. Knows nothing of what the leader does.

All times are taken from this machine's own clock, which never goes back. Another's Lease has run out when its record has not
changed for as long as it was asked for, as seen from here; this process's own right to write ends well before that, counted
from the begin of the last renewal that succeeded. So however the clocks of two machines differ, only one of them acts, as
long as a second is about as long on both.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from trainyard.kube.clock import steady_clock
from trainyard.kube.errors import ApiError
from trainyard.kube.lease import Lease, LeaseClient

_LOG = logging.getLogger(__name__)
LONGEST_LEASE = 300
"""Seconds for which a Lease may last: the bound of the setting."""


class NotLeadingError(Exception):
    """A write was asked for that only the leader may make."""


class LeadershipLostError(NotLeadingError):
    """This process was the leader and is not any more, or cannot know: it has to end."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a Lease is held and how soon given up. All in seconds."""

    lease: float = 15.0
    """After so long without a sign of the holder another may take it."""

    @property
    def renew_within(self) -> float:
        """After so long without a renewal the holder writes nothing more and ends."""
        return self.lease * 2 / 3

    @property
    def retry(self) -> float:
        """How often the holder renews it. Those who wait look twice as often, so that one that is given back is soon taken."""
        return self.lease * 2 / 15

    @property
    def end_of_writes(self) -> float:
        """When the last write of a holder has to be over: a bit before another may begin."""
        return self.lease - self.retry


@dataclass(slots=True, eq=False)
class LeaderElector:
    """One process's part in the election: `acquire`, then `keep` for as long as it can, then `resign` and `release`.

    `permit` is asked before each write. It costs no call, and a process that was stopped for a minute and goes on in the
    middle of a batch is told no, whatever it believes.
    """

    client: LeaseClient
    identity: str
    """A name that no other process has, nor this one after a restart."""
    inherits: Callable[[str], bool] = lambda _: False
    """Whether a holder is known to have ended: its Lease is waited for no longer."""
    timing: Timing = field(default_factory=Timing)
    clock: Callable[[], float] = steady_clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    """Uniform in [0, 1)."""
    lease: Lease | None = field(default=None, init=False)
    """As it was last seen or written."""
    _changed_at: float = field(default=0.0, init=False)
    _renewed_at: float | None = field(default=None, init=False)
    """The begin of the last renewal that succeeded; None while not leading."""
    _over: str | None = field(default=None, init=False)
    """Why this process leads no more. Final."""
    _complaint: str | None = field(default=None, init=False)

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_at is not None and self._over is None and self._age() < self.timing.renew_within

    def standing(self) -> str:
        """Who leads, as far as this process knows, for people."""
        if self.leading:
            return "this process leads"
        return f"standing by: {self.lease.holder} leads" if self.lease and self.lease.holder else "nobody leads yet"

    def permit(self) -> float:
        """Seconds within which a write that begins now has to be over. Raises NotLeadingError where none may begin."""
        if self._over is None and self._renewed_at is not None and self._age() >= self.timing.renew_within:
            # For good, even if a renewal that is under way should succeed: what was refused once is not taken up again.
            self._over = f"it was not renewed for {self._age():.0f} s"
        if self._over is not None or self._renewed_at is None:
            raise NotLeadingError(self._over or "the lease is not held")
        return self.timing.end_of_writes - self._age()

    async def acquire(self) -> None:
        """Wait until the Lease is free, and take it."""
        while True:
            try:
                if await self._try():
                    return
            except ApiError as error:
                self._complain(error)
            await self.sleep(self.timing.retry / 2 * (1.0 + self.random() / 5))

    async def keep(self) -> None:
        """Renew the Lease for ever. Raises LeadershipLostError, at the latest when the last renewal is too old."""
        while True:
            await self.sleep(min(self.timing.retry * (1.0 - self.random() / 5), max(0.0, self._left())))
            self._check()
            try:
                await self._renew()
            except ApiError as error:
                self._complain(error)
            self._check()

    def resign(self) -> None:
        """From now on nothing more is written, whatever still asks. What is under way goes on."""
        if self._over is None:
            self._over = "this process ends"

    async def release(self) -> None:
        """Give the Lease back, if it is still held, once nothing is under way any more. Never raises."""
        held, self._renewed_at = self._renewed_at, None
        if held is None or self.lease is None or self.clock() - held >= self.timing.renew_within:
            return
        within = self.timing.retry
        try:
            # Read first: the answer to the last renewal may be lost, for that was cut off.
            seen = await self.client.read(within=within)
            if seen is None or seen.holder != self.identity:
                return
            self.lease = await self.client.give_back(seen, within=within)
        except ApiError as error:
            _LOG.warning(f"the lease {self._name} could not be given back, another waits until it runs out: {error}")
        else:
            _LOG.info(f"gave the lease {self._name} back")

    async def _try(self) -> bool:
        seen = await self.client.read(within=self._patience)
        self._see(seen)
        if not self._free(seen):
            return False
        began = self.clock()
        try:
            self.lease = await self.client.take(seen, self.identity, self.timing.lease, within=self._patience)
        except ApiError as error:
            if _changed(error):
                return False  # another was quicker
            raise
        if self.clock() - began >= self.timing.renew_within:
            return False
        self._renewed_at = began
        self._complaint = None
        _LOG.info(f"leading: {self.identity} holds the lease {self._name}")
        return True

    def _see(self, seen: Lease | None) -> None:
        """Note what was read, and when it last was something new. One that vanishes is as good as held by whom it was."""
        before = self.lease
        if seen is None or (before is not None and seen.record == before.record):
            self.lease = seen if seen is not None else before
            return
        # Now, and not when the request was made: the later of the two only makes the wait longer.
        self.lease, self._changed_at = seen, self.clock()
        if not self._ours(seen) and (before is None or before.holder != seen.holder):
            _LOG.info(f"standing by: {seen.holder} holds the lease {self._name}")

    def _free(self, seen: Lease | None) -> bool:
        known = seen if seen is not None else self.lease
        if known is None or self._ours(known):
            return True
        # Nobody is given longer than any of us may ask for: a number written by hand would keep all of us standing by.
        return self.clock() - self._changed_at >= max(min(known.seconds, LONGEST_LEASE), self.timing.lease)

    def _ours(self, lease: Lease) -> bool:
        """Whether nobody else can be acting by it."""
        return lease.holder in {"", self.identity} or self.inherits(lease.holder)

    async def _renew(self) -> None:
        while True:
            began = self.clock()
            try:
                self.lease = await self.client.take(self.lease, self.identity, self.timing.lease, within=self._patience)
            except ApiError as error:
                if not _changed(error):
                    raise
                # Somebody wrote to it, or this process did and the answer was lost; or it was deleted, and perhaps made anew.
                self.lease = await self.client.read(within=self._patience)
                if self.lease is not None and self.lease.holder != self.identity:
                    self._over = f"{self.lease.holder or 'somebody'} has taken it"
                    return
                self._check()
            else:
                break
        self._renewed_at = began
        if self._complaint is not None:
            self._complaint = None
            _LOG.info(f"the lease {self._name} can be renewed again")

    def _check(self) -> None:
        if self._over is None and self._age() >= self.timing.renew_within:
            self._over = f"it was not renewed for {self._age():.0f} s"
        if self._over is not None:
            raise LeadershipLostError(f"lost the lease {self._name}: {self._over}")

    def _complain(self, error: ApiError) -> None:
        """Say it once, until it works again or something else is wrong. A right that is missing is told of by `Rights`."""
        kind = f"{error.status} {error.reason}"
        if kind != self._complaint and not error.lacks_right:
            self._complaint = kind
            what = "renew" if self._renewed_at is not None else "take"
            _LOG.warning(f"cannot {what} the lease {self._name}, trying again: {error}")

    def _age(self) -> float:
        return self.clock() - (self._renewed_at or 0.0)

    def _left(self) -> float:
        return self.timing.renew_within - self._age()

    @property
    def _patience(self) -> float:
        """Seconds for one request: one that hangs must leave time for another."""
        whole = self.timing.renew_within / 2
        return whole if self._renewed_at is None else max(0.01, min(whole, self._left()))

    @property
    def _name(self) -> str:
        return f"{self.client.namespace}/{self.client.name}"


def _changed(error: ApiError) -> bool:
    """Whether the Lease is not any more what it was when it was last read."""
    return error.conflict or error.already_exists or error.not_found
