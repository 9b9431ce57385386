"""At most one candidate leads, by monotonic clocks alone."""

import asyncio
from typing import Any

import pytest

from tests.support.election import HOME, NAME, election
from tests.support.fake_api import FakeApi
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.engine.leader import MAX_LEASE_SECONDS, LeaderElector, LeaseTiming, NotLeadingError
from trainyard.kube.lease import LEASES, Lease, LeaseClient

PUT = {"method": "PUT"}


async def test_first_leads_and_second_is_standby(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        assert await vote.until_writes(first, 1) == 0
        second = vote.join("second")
        await vote.wait(60)
        assert (first.may_write, second.may_write) == (True, False)
        assert first.elector.describe() == "this process is the leader"
        assert second.elector.describe() == "standby: first is the leader"
        assert vote.lease()["leaseTransitions"] == 0


async def test_standby_takes_over_within_20_seconds(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        second = vote.join("second")
        await vote.wait(7)
        first.kill()
        took = await vote.until_writes(second, 20)
        assert took > LeaseTiming().duration - LeaseTiming().retry_period
        assert (vote.lease()["holderIdentity"], vote.lease()["leaseTransitions"]) == ("second", 1)


async def test_restarted_process_takes_its_lease_at_once(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("pod_1")
        await vote.until_writes(first, 1)
        second = vote.join("other")
        await vote.wait(7)
        first.kill()
        heir = vote.join("pod_2", holder_has_exited=lambda holder: holder.startswith("pod_"))
        assert await vote.until_writes(heir, 1) == 0
        assert (vote.lease()["holderIdentity"], vote.lease()["leaseTransitions"]) == ("pod_2", 1)
        await vote.wait(60)
        assert (heir.may_write, second.may_write) == (True, False)


async def test_late_successor_is_standby(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("pod_1")
        await vote.until_writes(first, 1)
        second = vote.join("other")
        await vote.wait(1)
        first.kill()
        await vote.until_writes(second, 20)
        heir = vote.join("pod_2", holder_has_exited=lambda holder: holder.startswith("pod_"))
        await vote.wait(30)
        assert (heir.may_write, second.may_write) == (False, True)


async def test_wrongly_succeeded_leader_exits_at_next_renewal(api: FakeApi, timers: FakeTimers) -> None:
    """The runtime has lost a running container, for example, and another was started in its place."""
    async with election(api, timers) as vote:
        first = vote.join("pod_1")
        await vote.until_writes(first, 1)
        heir = vote.join("pod_2", holder_has_exited=lambda holder: holder.startswith("pod_"))
        await vote.until_writes(heir, 1)
        await vote.wait(LeaseTiming().retry_period)
        assert first.lost == f"lost the lease {HOME}/{NAME}: pod_2 has taken it"
        assert heir.may_write


async def test_late_renewal_only_delays_the_successor(api: FakeApi, timers: FakeTimers) -> None:
    """It was on its way when its process died: the heir's first try, made of what it read before, is refused."""
    async with election(api, timers) as vote:
        first = vote.join("pod_1")
        await vote.until_writes(first, 1)
        first.kill()
        api.fault(**PUT, status=409, reason="Conflict")
        heir = vote.join("pod_2", holder_has_exited=lambda holder: holder.startswith("pod_"))
        assert 0 < await vote.until_writes(heir, 3) < 2


async def test_released_lease_is_taken_within_two_seconds(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        second = vote.join("second")
        await vote.wait(7)
        first.elector.resign()
        first.kill()
        assert not first.may_write
        assert vote.lease()["holderIdentity"] == "first", "what is under way may still end"
        await first.elector.release()
        assert vote.lease()["holderIdentity"] == ""
        assert await vote.until_writes(second, 2) <= 2


async def test_suspended_process_writes_nothing_after_resuming(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        await vote.wait(3)
        first.stopped.clear()
        await vote.wait(30)
        with api.no_calls(writes_only=True):
            first.stopped.set()
            assert not first.may_write, "it is the first thing that it does"
            await vote.wait(0.1)
            assert first.lost == f"lost the lease {HOME}/{NAME}: not renewed for 31 s"


async def test_rejected_permit_is_final(api: FakeApi, timers: FakeTimers) -> None:
    """A renewal that was under way while the process was stopped may succeed after all."""
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        timers.advance(10)
        assert not first.may_write
        await vote.rest()
        await vote.wait(2)
        assert not first.may_write
        assert "not renewed for 10 s" in first.lost


async def test_renewal_counts_from_its_start(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        answered = api.fault(**PUT, delay=0.2)
        await vote.rest()
        timers.advance(2)
        await asyncio.sleep(0)
        await until(lambda: not answered.times)
        timers.advance(4)  # passes while the request is under way
        await vote.rest()
        left = first.elector.permit()
        assert left == pytest.approx(LeaseTiming().write_deadline - 4, abs=0.5)


async def test_huge_duration_does_not_block_election(api: FakeApi, timers: FakeTimers) -> None:
    largest = 2**31 - 1
    written = {"holderIdentity": "dead", "leaseDurationSeconds": largest, "leaseTransitions": largest}
    api.cluster.create(LEASES, HOME, {"metadata": {"name": NAME}, "spec": written})
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.wait(MAX_LEASE_SECONDS - 10)
        assert not first.may_write
        await vote.wait(20)
        assert first.may_write
    assert api.cluster.get(LEASES, HOME, NAME)["spec"]["leaseTransitions"] == largest


async def test_permit_returns_the_write_deadline(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        with pytest.raises(NotLeadingError, match="the lease is not held"):
            first.elector.permit()
        await vote.until_writes(first, 1)
        timers.advance(0.5)
        assert first.elector.permit() == LeaseTiming().write_deadline - 0.5
        assert LeaseTiming().renew_deadline < LeaseTiming().write_deadline < LeaseTiming().duration


async def test_short_api_outage_costs_nothing(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        api.fault(status=500, times=3)
        await vote.wait(20)
        assert first.may_write


async def test_long_api_outage_ends_leadership_in_time(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        api.fault(status=500, times=1000)
        await vote.wait(LeaseTiming().renew_deadline + 0.1)
        assert not first.may_write
        assert "not renewed for 10 s" in first.lost


async def test_lost_answer_to_a_renewal_is_survived(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        api.fault(**PUT, lose_answer=True, times=2)
        await vote.wait(20)
        assert first.may_write
        assert vote.lease()["leaseTransitions"] == 0


async def test_lost_answer_to_acquiring_is_survived(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        api.fault(method="POST", lose_answer=True)
        first = vote.join("first")
        await vote.until_writes(first, 3)
        assert vote.lease()["holderIdentity"] == "first"


async def test_leader_exits_when_lease_is_taken(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        vote.write(holderIdentity="somebody-else")
        await vote.wait(2)
        assert first.lost == f"lost the lease {HOME}/{NAME}: somebody-else has taken it"
        assert vote.lease()["holderIdentity"] == "somebody-else"


@pytest.mark.parametrize(
    "change", [{"metadata": {"labels": {"team": "ml"}}}, {"spec": {"renewTime": "2000-01-01T00:00:00.000000Z"}}]
)
async def test_unrelated_write_to_lease_is_survived(api: FakeApi, timers: FakeTimers, change: dict[str, Any]) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        api.cluster.merge(LEASES, HOME, NAME, change)
        await vote.wait(30)
        assert first.may_write
    labels = api.cluster.get(LEASES, HOME, NAME)["metadata"].get("labels")
    assert labels == change.get("metadata", {}).get("labels"), "what is not ours stays"


async def test_deleted_lease_is_recreated(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        second = vote.join("second")
        await vote.wait(5)
        api.cluster.delete(LEASES, HOME, NAME)
        for _ in range(40):
            await vote.wait(0.1)
            assert not second.may_write, "it has seen a holder that may not know yet"
        assert first.may_write
        assert vote.lease()["holderIdentity"] == "first"


async def test_deleted_lease_of_dead_holder_expires_once(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        second = vote.join("second")
        await vote.wait(5)
        first.kill()
        await vote.wait(5)
        api.cluster.delete(LEASES, HOME, NAME)
        await vote.until_writes(second, 12)


async def test_longer_lease_duration_is_respected(api: FakeApi, timers: FakeTimers) -> None:
    """As during an upgrade that makes leases shorter."""
    async with election(api, timers) as vote:
        first = vote.join("first", timing=LeaseTiming(60))
        await vote.until_writes(first, 1)
        first.kill()
        second = vote.join("second")
        assert await vote.until_writes(second, 70) > 55


@pytest.mark.parametrize("seconds", [None, 0, -5, "long"])
async def test_lease_with_invalid_duration_expires(api: FakeApi, timers: FakeTimers, seconds: Any) -> None:
    spec = {"holderIdentity": "strange", "leaseDurationSeconds": seconds, "leaseTransitions": "many"}
    api.cluster.create(LEASES, HOME, {"metadata": {"name": NAME}, "spec": spec})
    async with election(api, timers) as vote:
        first = vote.join("first")
        assert await vote.until_writes(first, 20) > 14


async def test_wall_clock_does_not_matter(api: FakeApi, timers: FakeTimers) -> None:
    times = {"acquireTime": "1999-01-01T00:00:00.000000Z", "renewTime": "2199-01-01T00:00:00.000000Z"}
    spec = {"holderIdentity": "strange", "leaseDurationSeconds": 15, **times}
    api.cluster.create(LEASES, HOME, {"metadata": {"name": NAME}, "spec": spec})
    async with election(api, timers) as vote:
        first = vote.join("first")
        assert 14 < await vote.until_writes(first, 20) < 18


async def test_simultaneous_start_elects_one(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        both = [vote.join("first"), vote.join("second")]
        for _ in range(50):
            await vote.wait(0.1)
            assert sum(candidate.may_write for candidate in both) <= 1
        assert sum(candidate.may_write for candidate in both) == 1


@pytest.mark.parametrize(("status", "reason", "logged"), [(409, "AlreadyExists", False), (403, "Forbidden", True)])
async def test_failed_lease_creation_is_logged_unless_race_lost(
    api: FakeApi, timers: FakeTimers, caplog: pytest.LogCaptureFixture, status: int, reason: str, *, logged: bool
) -> None:
    api.fault(method="POST", path=".*/leases", status=status, reason=reason, message="no lease for you", times=1)
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, LeaseTiming().retry_period)
    assert ("no lease for you" in caplog.text) is logged


async def test_missing_permission_is_logged_and_retried(api: FakeApi, timers: FakeTimers) -> None:
    message = 'leases is forbidden: User "x" cannot get resource "leases" in API group "coordination.k8s.io"'
    api.fault(status=403, reason="Forbidden", message=message, times=5)
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.wait(2)
        permissions = first.elector.client.session.permissions
        assert [str(permission) for permission in permissions.missing()] == [
            "get leases.coordination.k8s.io in the namespace home"
        ]
        await vote.until_writes(first, 20)
        assert permissions.missing() == {}


async def test_release_leaves_a_lease_of_another_holder(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        first.kill()
        vote.write(holderIdentity="somebody-else")
        await first.elector.release()
        assert vote.lease()["holderIdentity"] == "somebody-else"


async def test_release_without_api_server_does_not_raise(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        first.kill()
        api.fault(status=500, times=10)
        await first.elector.release()
        assert not first.may_write


async def test_standby_releases_nothing(api: FakeApi) -> None:
    elector = LeaderElector(LeaseClient(api.session(), HOME, NAME), "first")
    with api.no_calls():
        await elector.release()


async def test_leader_change_is_logged_once(api: FakeApi, timers: FakeTimers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trainyard.engine.leader")
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        vote.join("second")
        await vote.wait(60)
        first.kill()
        # It may take the lease at once, and so never is standby.
        heir = vote.join("first again", holder_has_exited=lambda holder: holder == "first")
        await vote.until_writes(heir, 1)
    assert [record.message for record in caplog.records if "standby" in record.message] == [
        f"standby, another process leads lease={HOME}/{NAME} holder=first"
    ]


async def test_failed_renewal_is_logged_once(
    api: FakeApi, timers: FakeTimers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "trainyard.engine.leader")
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        api.fault(**PUT, status=500, reason="InternalError", times=2)
        api.fault(**PUT, status=503, reason="ServiceUnavailable")
        await vote.wait(9)
        assert first.may_write
    warnings = [record.message.partition(" error=")[0] for record in caplog.records]
    assert warnings == [f"cannot renew lease, retrying lease={HOME}/{NAME}"] * 2


async def test_released_lease_has_no_leader(api: FakeApi, timers: FakeTimers) -> None:
    async with election(api, timers) as vote:
        first = vote.join("first")
        await vote.until_writes(first, 1)
        second = vote.join("second")
        await vote.wait(1)
        second.elector.lease = Lease({"spec": {"holderIdentity": ""}})
        assert second.elector.describe() == "no leader yet"
