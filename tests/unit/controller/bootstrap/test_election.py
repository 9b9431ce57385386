"""Leader election with two operators: a leader and a hot standby."""

from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator, process
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.bootstrap import operator as operator_module
from trainyard.controller.bootstrap.operator import Operator
from trainyard.engine.leader import LeadershipLostError
from trainyard.kube.lease import LEASES
from trainyard.kube.resource import EVENTS, PODS

if TYPE_CHECKING:
    from trainyard.controller.bootstrap.http_server import Ports

VOTE: dict[str, Any] = {"lease_namespace": "home"}
PODS_OF_BOTH = "job-worker-0-1", "job-worker-1-1"


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def holder(api: FakeApi) -> str:
    found: str = api.cluster.get(LEASES, "home", "trainyard")["spec"]["holderIdentity"]
    return found


async def until_leads(op: Operator) -> None:
    await until(lambda: op.elector is not None and op.elector.leading)


def writes(api: FakeApi) -> list[str]:
    return [call.verb for call in api.writes if "leases" not in call.path]


async def test_standby_writes_nothing(api: FakeApi, lab: Lab) -> None:
    async with process(api, **VOTE, instance="one") as one:
        await until_leads(one)
        async with process(api, **VOTE, instance="two") as two:
            job = lab.submit()
            await lab.until_pods(*PODS_OF_BOTH)
            uid = job["metadata"]["uid"]
            cache = two.caches.of(LAB)
            await until(lambda: len(cache.pods.of(uid)) == 2 and cache.services.of(uid) and two.caches.job(uid))
            assert [holder(api).split("_")[0], two.elector.leading if two.elector else None] == ["one", False]
            assert two.loop.active == 0
            assert len([verb for verb in writes(api) if verb == "POST pods"]) == 2


async def test_lease_event_names_the_leader(api: FakeApi) -> None:
    async with process(api, **VOTE, instance="one") as one:
        await until(lambda: api.cluster.objects(EVENTS, "home"))
        (event,) = api.cluster.objects(EVENTS, "home")
        lease = api.cluster.get(LEASES, "home", "trainyard")
        assert (event["reason"], event["regarding"]["uid"]) == ("LeaderElection", lease["metadata"]["uid"])
        assert event["note"] == f"{one.elector.identity if one.elector else None} became leader"


async def test_restarted_container_keeps_leading(api: FakeApi, lab: Lab) -> None:
    """It learns of its predecessor only from the Lease, in the state that a killed process leaves."""
    held = {"holderIdentity": "one_uid-1_11111111", "leaseDurationSeconds": 300, "leaseTransitions": 4}
    api.cluster.create(LEASES, "home", {"metadata": {"name": "trainyard"}, "spec": held})
    async with process(api, **VOTE, instance="one", pod_uid="uid-1") as one:
        await until_leads(one)
        assert holder(api).startswith("one_uid-1_")
        assert holder(api) != held["holderIdentity"]
        assert api.cluster.get(LEASES, "home", "trainyard")["spec"]["leaseTransitions"] == 5
        lab.submit()
        await lab.until_pods(*PODS_OF_BOTH)
        async with process(api, **VOTE, instance="one", pod_uid="uid-1") as second:
            await until(lambda: second.elector is not None and second.elector.lease)
            assert second.elector is not None
            assert not second.elector.identity.startswith("one_uid-1_"), "the place is taken"
            assert not second.elector.leading


async def test_clean_stop_hands_over_at_once(api: FakeApi, lab: Lab) -> None:
    async with process(api, **VOTE, instance="one") as one:
        await until_leads(one)
        lab.submit()
        await lab.until_pods(*PODS_OF_BOTH)
        lab.runs(*PODS_OF_BOTH)
        await lab.until_phase("Running")
        two = process(api, **VOTE, instance="two")
        await two.__aenter__()
    try:
        lab.ends("job-worker-1-1", 3)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
        assert lab.status()["restarts"] == {"failures": 1, "disruptions": 0, "resizes": 0}
        assert holder(api).startswith("two_")
    finally:
        await two.__aexit__(None, None, None)
    assert holder(api) == ""


async def test_new_leader_lists_again(api: FakeApi, lab: Lab) -> None:
    """Its watch on pods is behind, so the pods of the job would look deleted."""
    async with process(api, **VOTE, instance="one") as one:
        await until_leads(one)
        ears = len(api.watches)
        two = process(api, **VOTE, instance="two")
        other = await two.__aenter__()
        await api.watching(ears + 3)
        for watch in api.watches[ears:]:
            watch.silent = watch.place[2] == "pods"
        job = lab.submit()
        await lab.until_pods(*PODS_OF_BOTH)
        lab.runs(*PODS_OF_BOTH)
        await lab.until_phase("Running")
        await until(lambda: (r := other.caches.job(job["metadata"]["uid"])) and r.view and r.view.status.running_time)
        assert len(other.caches.of(LAB).pods) == 0
    try:
        await until_leads(other)
        await until(lambda: len(other.caches.of(LAB).pods) == 2)
        await until(lambda: other.loop.active == 0 and not other.loop._queue.depth)
        assert (lab.status()["attempt"], lab.pods()) == (1, [*PODS_OF_BOTH])
    finally:
        await two.__aexit__(None, None, None)


async def test_lost_lease_stops_all_writes(api: FakeApi, lab: Lab) -> None:
    async def lose() -> None:
        async with process(api, **VOTE, lease_duration_seconds=3) as one:
            await until_leads(one)
            lab.submit()
            await lab.until_pods(*PODS_OF_BOTH)
            api.cluster.merge(LEASES, "home", "trainyard", {"spec": {"holderIdentity": "somebody-else"}})
            await until(lambda: one.elector is not None and not one.elector.leading)
            api.calls.clear()
            lab.change(lifecycle={"suspend": True})

    with pytest.raises(LeadershipLostError, match="somebody-else has taken it"):
        await lose()
    assert writes(api) == []
    assert holder(api) == "somebody-else"


async def test_lease_is_released_after_requests_in_flight(api: FakeApi, lab: Lab) -> None:
    slow = api.fault(method="POST", path=".*/pods", delay=0.3)
    async with process(api, **VOTE) as one:
        await until_leads(one)
        lab.submit(replicas=50)
        await until(lambda: not slow.times)
    sent = [call for call in api.writes if call.verb in {"POST pods", "PUT trainyard"}]
    assert [call.verb for call in sent if call.verb == "POST pods"] == ["POST pods"], "no more is begun"
    assert sent[-1].verb == "PUT trainyard"
    assert all(call.status < 300 for call in sent)
    assert len(api.cluster.objects(PODS, LAB)) == 1


async def test_unanswered_write_keeps_the_lease(api: FakeApi, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still be carried out, and no other process may write before that."""
    monkeypatch.setattr(operator_module, "WRITE_DRAIN_SECONDS", 0.1)
    slow = api.fault(method="POST", path=".*/pods", delay=20)
    async with process(api, **VOTE, instance="one") as one:
        await until_leads(one)
        lab.submit()
        await until(lambda: not slow.times)
    assert holder(api).startswith("one_")


async def test_queued_events_are_written_before_exit(api: FakeApi, lab: Lab) -> None:
    slow = api.fault(method="POST", path=f".*/{LAB}/events", delay=0.3)
    async with process(api, **VOTE) as one:
        await until_leads(one)
        for name in ("a", "b"):
            lab.submit(name)
        await until(
            lambda: (
                not slow.times
                and all(lab.status(name).get("internal", {}).get("launchedAttempt") for name in ("a", "b"))
            )
        )
    event_writes = [
        call for call in api.writes if call.verb == "POST events" and LAB in call.path and call.status < 300
    ]
    assert len(event_writes) == 2


async def test_probes_and_metrics_name_the_leader(api: FakeApi) -> None:
    ports: list[Ports] = []
    async with (
        process(api, ports, **VOTE, instance="one") as one,
        aiohttp.ClientSession() as client,
    ):
        await until_leads(one)
        async with process(api, ports, **VOTE, instance="two") as two:
            await until(lambda: two.elector is not None and two.elector.lease)
            answers = []
            for each in ports:
                for path in ("healthz", "readyz", "metrics"):
                    port = each.metrics if path == "metrics" else each.health
                    async with client.get(f"http://127.0.0.1:{port}/{path}") as answer:
                        assert answer.status == 200
                        answers.append(await answer.text())
    assert (answers[0], answers[1]) == ("ok\n", "ok\nthis process is the leader\n")
    assert (answers[3], answers[4].partition("_")[0]) == ("ok\n", "ok\nstandby: one")
    assert 'leader_election_master_status{name="trainyard"} 1.0' in answers[2]
    assert 'leader_election_master_status{name="trainyard"} 0.0' in answers[5]
    assert 'trainyard_leader_transitions{name="trainyard"} 0.0' in answers[5]


async def test_forbidden_lease_fails_readiness(api: FakeApi) -> None:
    message = 'leases is forbidden: User "x" cannot get resource "leases" in API group "coordination.k8s.io"'
    api.fault(path=".*/leases.*", status=403, reason="Forbidden", message=message, times=10_000)
    ports: list[Ports] = []
    async with (
        operator(api, ports, ready=False, leader_election=True, **VOTE) as one,
        aiohttp.ClientSession() as client,
    ):
        await until(one.health.permissions.missing)
        async with client.get(f"http://127.0.0.1:{ports[0].health}/readyz") as answer:
            text = await answer.text()
            assert answer.status == 503
        async with client.get(f"http://127.0.0.1:{ports[0].health}/healthz") as answer:
            assert answer.status == 200, "a restart would not help"
    assert "grant its service account the verb get on leases.coordination.k8s.io" in text
