"""Templates whose pods cannot find their master by its name: event and condition tell."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job, spec
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.state.job_template import dns_problem

SVC = {"nameservers": ["10.96.0.10"], "searches": ["ns.svc.cluster.local", "svc.cluster.local"]}
BROKEN = (
    "dnsPolicy Default does not use the cluster's DNS, so that workers cannot find their master: leave dnsPolicy out"
)


def template(**pod: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1"}], **pod}}


def searching(*domains: str) -> dict[str, Any]:
    return {"nameservers": ["10.96.0.10"], "searches": [*domains]}


@pytest.mark.parametrize(
    ("pod", "starts"),
    [
        ({}, ""),
        ({"hostNetwork": True}, ""),
        ({"dnsPolicy": "ClusterFirst"}, ""),
        ({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}, ""),
        ({"dnsPolicy": "ClusterFirst", "hostNetwork": True}, "dnsPolicy ClusterFirst with hostNetwork does not"),
        ({"dnsPolicy": "Default"}, "dnsPolicy Default does not"),
        ({"dnsPolicy": "Default", "dnsConfig": SVC}, ""),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8"]}},
            "dnsPolicy None without ns.svc.cluster.local",
        ),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.96.0.10"]}}, "dnsPolicy None without ns.svc."),
        ({"dnsPolicy": "None", "dnsConfig": searching("other.svc.cluster.local")}, "dnsPolicy None without ns.svc."),
        ({"dnsPolicy": "None", "dnsConfig": searching("svc.cluster.local")}, "dnsPolicy None without ns.svc."),
        ({"dnsPolicy": "None", "dnsConfig": searching("ns.svcs.example.com")}, "dnsPolicy None without ns.svc."),
        ({"dnsPolicy": "Default", "dnsConfig": searching("other.svc.cluster.local")}, "dnsPolicy Default without"),
        ({"dnsPolicy": "None", "dnsConfig": SVC}, ""),
        ({"dnsPolicy": "None", "dnsConfig": searching("other.svc.example.com", "ns.svc.example.com")}, ""),
        ({"dnsPolicy": "None", "dnsConfig": searching("ns.svc.cluster.local.")}, ""),
        ({"dnsPolicy": "None", "dnsConfig": SVC | {"options": [{"name": "ndots", "value": "0"}]}}, ""),
        ({"dnsConfig": searching("other.svc.cluster.local")}, ""),
        ({"dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}, ""),
    ],
)
def test_template_without_cluster_dns(pod: dict[str, Any], starts: str) -> None:
    problem = dns_problem(spec(2, template=template(**pod)), "ns", 2)
    assert problem.startswith(starts)
    assert bool(problem) is bool(starts)


def test_single_worker_needs_no_name() -> None:
    assert dns_problem(spec(1, template=template(dnsPolicy="Default")), "ns", 1) == ""


def test_problem_is_in_condition_and_event() -> None:
    scene = Scene(spec(2, template=template(dnsPolicy="Default"))).created().with_status(launched_attempt=0)
    events = [(event.type, event.reason, event.note) for event in plan(scene.snapshot, NOW).events]
    assert ("Warning", Reason.CLUSTER_DNS_UNUSED, BROKEN) in events
    for seen in (scene, scene.running()):
        running = plan(seen.snapshot, NOW).status.condition(C.RUNNING)
        assert running is not None
        assert running.message.endswith(f"; {BROKEN}")
    assert BROKEN not in str(plan(job(2).running().snapshot, NOW).status.conditions)
