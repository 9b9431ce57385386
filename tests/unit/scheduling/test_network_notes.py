"""The words of events and conditions about a network profile."""

from typing import Any

from tests.support.jobs import spec
from tests.support.network_pods import WITH_IMAGES
from trainyard.scheduling.network_choice import Choice
from trainyard.scheduling.network_notes import applied_note, conflict_notes, invalid_because, refused_because
from trainyard.scheduling.network_profile import NamedProfile, NetworkProfile, with_own
from trainyard.scheduling.worker_network import Facts, with_network

EFA, RDMA, TCPX = (WITH_IMAGES[name] for name in ("efa", "rdma", "gpudirect-tcpx"))
MAX_NOTE = 1024
"""Bytes of an event's note in the API of Kubernetes."""


def facts(network: NamedProfile, **main: Any) -> Facts:
    return with_network({"spec": {"containers": [{"name": "main", "image": "i", **main}]}}, network).facts


def test_event_lists_what_was_set_and_what_remains() -> None:
    made = facts(EFA, resources={"limits": {"memory": "8Gi"}})
    assert applied_note(Choice(EFA), made) == (
        "network.profile efa sets vpc.amazonaws.com/efa: 1, hugepages-2Mi: 5120Mi, NCCL_SOCKET_IFNAME=eth0,"
        " GLOO_SOCKET_IFNAME=eth0; request as many vpc.amazonaws.com/efa as the instance type has (32 on p5.48xlarge),"
        " and use an image with aws-ofi-nccl"
    )


def test_event_of_auto_has_the_proof() -> None:
    note = applied_note(Choice(RDMA, "resource rdma/x"), Facts(("capability IPC_LOCK",)))
    assert note == "network.profile rdma (auto: resource rdma/x) sets capability IPC_LOCK"


def test_event_where_the_template_has_all() -> None:
    assert "sets nothing, since the template has all of it" in applied_note(Choice(RDMA), Facts())


def test_event_where_auto_sets_nothing() -> None:
    assert applied_note(Choice(note="nothing proves a network"), Facts()) == (
        "network.profile auto: nothing proves a network"
    )
    assert applied_note(Choice(), Facts()) == ""


def test_long_lists_have_names_alone() -> None:
    note = applied_note(Choice(TCPX), facts(TCPX))
    assert len(note.encode()) <= MAX_NOTE
    assert "NCCL_P2P_PXN_LEVEL" in note


def test_conflicts_name_values_of_the_template() -> None:
    made = Facts(kept=("NCCL_NET=IB",), left_out=("hugepages-2Mi (why)",))
    kept, left = conflict_notes(EFA, made)
    assert kept.startswith("the template keeps NCCL_NET=IB, where network.profile efa has other values")
    assert left == "network.profile efa does not set hugepages-2Mi (why)"
    assert conflict_notes(EFA, Facts(("a",))) == []


def test_invalid_pod_may_be_the_platform_teams_fault() -> None:
    own = with_own(WITH_IMAGES, {"site": NetworkProfile(base="rdma")})["site"]
    assert "networkProfiles.site of the chart" in invalid_because(Choice(own))
    assert invalid_because(Choice(RDMA)) == ""
    assert invalid_because(Choice()) == ""


def test_rejection_names_what_the_profile_adds() -> None:
    job = spec(network={"profile": "auto"})
    assert refused_because(Choice(RDMA), job) == (
        "network.profile rdma adds the capability IPC_LOCK, which the baseline standard refuses: have the namespace labelled"
        " pod-security.kubernetes.io/enforce=privileged, or remove network.profile auto. "
    )
    assert refused_because(Choice(EFA), job) == ""
    assert refused_because(Choice(), job) == ""
