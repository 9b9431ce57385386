"""Leader election: one process of several leads while it keeps renewing a Lease. Knows nothing about the leader's work.

All times come from this machine's monotonic clock. Another holder's Lease has expired when its record has not changed
for the lease duration, as seen from here. This process stops writing well before that, counted from the start of its
last successful renewal. So at most one process acts, however wall clocks differ, as long as a second lasts about as
long on both machines.
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
MAX_LEASE_SECONDS = 300
"""The maximum of the setting for the lease duration."""


class NotLeadingError(Exception):
    """A write needs leadership, which this process does not have."""


class LeadershipLostError(NotLeadingError):
    """This process has lost the lease, or cannot know: it has to exit."""


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """The lease duration and the deadlines that follow from it. All in seconds."""

    duration: float = 15.0
    """A Lease that was not renewed for this long may be taken by another process."""

    @property
    def renew_deadline(self) -> float:
        """A holder that could not renew for this long stops writing and exits."""
        return self.duration * 2 / 3

    @property
    def retry_period(self) -> float:
        """The interval of renewals. Standby processes poll twice as often, so that a released lease is taken soon."""
        return self.duration * 2 / 15

    @property
    def write_deadline(self) -> float:
        """The time after a renewal by which each write must be over, a little before another process may lead."""
        return self.duration - self.retry_period


@dataclass(slots=True, eq=False)
class LeaderElector:
    """One candidate: `acquire`, then `keep` for as long as possible, then `resign` and `release`.

    `permit` is called before each write and sends no request. A process that was suspended for a minute and resumes in
    the middle of a batch gets an error, whatever it believes.
    """

    client: LeaseClient
    identity: str
    """A unique name: no other process has it, nor does this one after a restart."""
    holder_has_exited: Callable[[str], bool] = lambda _: False
    """Whether a holder is known to have exited: then its Lease is taken at once."""
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    clock: Callable[[], float] = steady_clock
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    """Uniform in [0, 1)."""
    lease: Lease | None = field(default=None, init=False)
    """The Lease as it was last read or written."""
    _changed_at: float = field(default=0.0, init=False)
    _renewed_at: float | None = field(default=None, init=False)
    """The start of the last successful renewal; None while not leading."""
    _lost_reason: str | None = field(default=None, init=False)
    """Why this process lost the lease. Final."""
    _last_warning: str | None = field(default=None, init=False)

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self._renewed_at is not None and self._lost_reason is None and self._age() < self.timing.renew_deadline

    def describe(self) -> str:
        """Return who leads, as far as this process knows, for `/readyz`."""
        if self.leading:
            return "this process is the leader"
        return f"standby: {self.lease.holder} is the leader" if self.lease and self.lease.holder else "no leader yet"

    def permit(self) -> float:
        """Return the seconds within which a write that starts now must be over. Raises NotLeadingError where none may
        start.
        """
        if self._lost_reason is None and self._renewed_at is not None and self._age() >= self.timing.renew_deadline:
            # Final, even if a renewal in flight should succeed: a write that was rejected once is not repeated.
            self._lost_reason = f"not renewed for {self._age():.0f} s"
        if self._lost_reason is not None or self._renewed_at is None:
            raise NotLeadingError(self._lost_reason or "the lease is not held")
        return self.timing.write_deadline - self._age()

    async def acquire(self) -> None:
        """Wait until the Lease is available, and take it."""
        while True:
            try:
                if await self._try_acquire():
                    return
            except ApiError as error:
                self._warn_once(error)
            await self.sleep(self.timing.retry_period / 2 * (1.0 + self.random() / 5))

    async def keep(self) -> None:
        """Renew the Lease for ever. Raises LeadershipLostError, at the latest when the last renewal is too old."""
        while True:
            await self.sleep(min(self.timing.retry_period * (1.0 - self.random() / 5), max(0.0, self._time_left())))
            self._check()
            try:
                await self._renew()
            except ApiError as error:
                self._warn_once(error)
            self._check()

    def resign(self) -> None:
        """Allow no further writes. Writes in flight continue."""
        if self._lost_reason is None:
            self._lost_reason = "this process is exiting"

    async def release(self) -> None:
        """Release the Lease if it is still held. Call it once no write is in flight. Never raises."""
        held, self._renewed_at = self._renewed_at, None
        if held is None or self.clock() - held >= self.timing.renew_deadline:
            return
        within = self.timing.retry_period
        try:
            # Read first: the answer to the last renewal may be lost, since that request was cancelled.
            seen = await self.client.read(within=within)
            if seen is None or seen.holder != self.identity:
                return
            self.lease = await self.client.release(seen, within=within)
        except ApiError as error:
            _LOG.warning(
                f"cannot release lease, standby processes wait until it expires lease={self._name} error={str(error)!r}"
            )
        else:
            _LOG.info(f"released lease lease={self._name}")

    async def _try_acquire(self) -> bool:
        seen = await self.client.read(within=self._request_timeout)
        self._record_seen(seen)
        if not self._is_available(seen):
            return False
        started = self.clock()
        try:
            self.lease = await self.client.take(seen, self.identity, self.timing.duration, within=self._request_timeout)
        except ApiError as error:
            if _was_modified(error):
                return False  # another process was faster
            raise
        if self.clock() - started >= self.timing.renew_deadline:
            return False
        self._renewed_at = started
        self._last_warning = None
        _LOG.info(f"acquired lease lease={self._name} holder={self.identity}")
        return True

    def _record_seen(self, seen: Lease | None) -> None:
        """Record what was read and when it last changed. A Lease that vanished counts as held by its last holder."""
        before = self.lease
        if seen is None or (before is not None and seen.record == before.record):
            self.lease = seen if seen is not None else before
            return
        # The time of the answer and not of the request: the later one only makes the wait longer.
        self.lease, self._changed_at = seen, self.clock()
        if not self._is_unheld(seen) and (before is None or before.holder != seen.holder):
            _LOG.info(f"standby, another process leads lease={self._name} holder={seen.holder}")

    def _is_available(self, seen: Lease | None) -> bool:
        known = seen if seen is not None else self.lease
        if known is None or self._is_unheld(known):
            return True
        # At most the setting's maximum: otherwise a huge duration set by hand would block all processes.
        return self.clock() - self._changed_at >= max(min(known.seconds, MAX_LEASE_SECONDS), self.timing.duration)

    def _is_unheld(self, lease: Lease) -> bool:
        """Return whether no other process can be leading by this Lease."""
        return lease.holder in {"", self.identity} or self.holder_has_exited(lease.holder)

    async def _renew(self) -> None:
        while True:
            started = self.clock()
            try:
                self.lease = await self.client.take(
                    self.lease, self.identity, self.timing.duration, within=self._request_timeout
                )
            except ApiError as error:
                if not _was_modified(error):
                    raise
                # Another client wrote to it, or this process did and the answer was lost, or the Lease was deleted and
                # perhaps recreated.
                self.lease = await self.client.read(within=self._request_timeout)
                if self.lease is not None and self.lease.holder != self.identity:
                    self._lost_reason = f"{self.lease.holder or 'another client'} has taken it"
                    return
                self._check()
            else:
                break
        self._renewed_at = started
        if self._last_warning is not None:
            self._last_warning = None
            _LOG.info(f"renewed lease again lease={self._name}")

    def _check(self) -> None:
        if self._lost_reason is None and self._age() >= self.timing.renew_deadline:
            self._lost_reason = f"not renewed for {self._age():.0f} s"
        if self._lost_reason is not None:
            raise LeadershipLostError(f"lost the lease {self._name}: {self._lost_reason}")

    def _warn_once(self, error: ApiError) -> None:
        """Log an error once, until requests succeed or the error changes. The permission tracker logs missing
        permissions.
        """
        kind = f"{error.status} {error.reason}"
        if kind != self._last_warning and not error.permission_denied:
            self._last_warning = kind
            verb = "renew" if self._renewed_at is not None else "acquire"
            _LOG.warning(f"cannot {verb} lease, retrying lease={self._name} error={str(error)!r}")

    def _age(self) -> float:
        return self.clock() - (self._renewed_at or 0.0)

    def _time_left(self) -> float:
        return self.timing.renew_deadline - self._age()

    @property
    def _request_timeout(self) -> float:
        """The timeout of one request in seconds: one that hangs must leave time for another."""
        whole = self.timing.renew_deadline / 2
        return whole if self._renewed_at is None else max(0.01, min(whole, self._time_left()))

    @property
    def _name(self) -> str:
        return f"{self.client.namespace}/{self.client.name}"


def _was_modified(error: ApiError) -> bool:
    """Return whether the Lease has changed since it was last read."""
    return error.conflict or error.already_exists or error.not_found
