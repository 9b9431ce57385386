"""What a candidate says of itself, and what it releases, before, while and after it leads."""

from tests.support.election import HOME, NAME, election
from tests.support.fake_api import FakeApi
from tests.support.timers import FakeTimers
from trainyard.engine.leader import LeaderElector, LeaseTiming
from trainyard.kube.lease import LeaseClient


async def test_leads_from_the_first_renewal_on(api: FakeApi) -> None:
    elector = LeaderElector(LeaseClient(api.session(), HOME, NAME), "first", clock=lambda: 0.0)
    assert not elector.leading
    await elector.acquire()
    assert elector.leading
    elector.resign()
    assert not elector.leading


async def test_leads_no_more_at_the_renew_deadline(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        timers.advance(LeaseTiming().renew_deadline - 0.5)
        assert first.elector.leading
        timers.advance(0.5)
        assert not first.elector.leading


async def test_expired_or_unheld_lease_is_not_released(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        first.kill()
        timers.advance(LeaseTiming().renew_deadline)
        with api.no_calls():
            await first.elector.release()
        standby = vote.join("standby")
        await vote.rest()
        standby.kill()
        with api.no_calls():
            await standby.elector.release()
