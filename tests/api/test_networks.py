"""Network profiles on a real API server: it takes the pods of each, refuses contradictions, and baseline says what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.nodes import MERGE, Namespace
from tests.api.plane import JOBS, Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.network_pods import GPUS, WITH_IMAGES, network_pod
from tests.support.polling import until
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import NamedProfile, NetworkProfile, named

Json = dict[str, Any]
LAB = "/api/v1/namespaces/lab"
STRICT = "fieldValidation=Strict&dryRun=All"
GPU_POD: Json = {"containers": [{"name": "main", "image": "example.com/trainer:1", "resources": GPUS}]}
ALL_FIELDS = named(
    "site",
    NetworkProfile.model_validate(
        {
            "resources": {"nvidia.com/rdma-vf": 16, "hugepages-2Mi": "1Gi"},
            "capabilities": ["IPC_LOCK"],
            "networks": ["rdma-vf"] * 16,
            "interface": "eth0",
            "env": {"NCCL_TOPO_FILE": "/etc/nccl/topology.xml"},
            "volumes": [{"name": "topology", "configMap": {"name": "nccl-topology"}}],
            "volumeMounts": [{"name": "topology", "mountPath": "/etc/nccl"}],
            "sidecars": [{"name": "daemon", "image": "example.com/daemon:1"}],
        }
    ),
)


def taken(plane: Plane, pod: Json) -> Json:
    """Have the API server judge a pod, and keep nothing. Return it as the server would store it."""
    del pod["metadata"]["ownerReferences"]
    pod["metadata"]["namespace"] = "lab"
    made: Json = plane.call("POST", f"{LAB}/pods?{STRICT}", pod)
    return made


@pytest.mark.parametrize("profile", [*WITH_IMAGES.values(), ALL_FIELDS], ids=lambda each: each.name)
def test_pods_of_each_profile_are_taken(plane: Plane, profile: NamedProfile) -> None:
    made = taken(plane, network_pod(profile))
    asked = made["spec"]["containers"][0]["resources"]
    assert all(asked["requests"][name] == asked["limits"][name] for name in profile.profile.resources)
    sidecars = made["spec"].get("initContainers", [])
    assert [(each["name"], each["restartPolicy"]) for each in sidecars] == [
        (each["name"], "Always") for each in profile.profile.sidecars
    ]


@pytest.mark.parametrize("name", [name for name, known in KNOWN_NETWORKS.items() if known.profile.host_network])
def test_pods_on_the_hosts_network_are_taken(plane: Plane, name: str) -> None:
    taken(plane, network_pod(WITH_IMAGES[name], hostNetwork=True))


def test_huge_pages_without_memory_are_left_out(plane: Plane) -> None:
    main = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    limits = taken(plane, network_pod(WITH_IMAGES["efa"], main))["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "1"}
    main["resources"] = {"limits": {"nvidia.com/gpu": 8, "hugepages-2Mi": "5120Mi"}}
    with pytest.raises(RefusedError, match="HugePages require cpu or memory"):
        taken(plane, network_pod(WITH_IMAGES["efa"], main))


class TestField:
    def refused(self, plane: Plane, profile: str, **pod: Any) -> str:
        spec = {"framework": "none", "network": {"profile": profile}, "template": {"spec": {**GPU_POD, **pod}}}
        manifest = {
            "apiVersion": "trainyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "x"},
            "spec": spec,
        }
        try:
            plane.call("POST", f"{JOBS}/namespaces/lab/trainingjobs?dryRun=All", manifest)
        except RefusedError as error:
            return str(error)
        return ""

    @pytest.mark.parametrize("name", ["auto", *KNOWN_NETWORKS, "site-2"])
    def test_takes_known_and_other_names(self, plane: Plane, name: str) -> None:
        assert self.refused(plane, name) == ""

    @pytest.mark.parametrize("name", ["", "EFA", "-efa", "e" * 64])
    def test_refuses_what_is_no_name(self, plane: Plane, name: str) -> None:
        assert "network.profile" in self.refused(plane, name)

    @pytest.mark.parametrize("name", [name for name in KNOWN_NETWORKS if name.startswith("gpudirect")])
    def test_refuses_the_hosts_network(self, plane: Plane, name: str) -> None:
        assert not KNOWN_NETWORKS[name].profile.host_network
        assert "which hostNetwork excludes; remove one of the two" in self.refused(plane, name, hostNetwork=True)
        assert self.refused(plane, name, hostNetwork=False) == ""


@pytest.fixture
def running(plane: Plane, lab: Namespace, granted: None) -> Iterator[Namespace]:
    with operator(plane, "networks", leader_election="false"):
        yield lab
    lab.remove("wired")


def test_profile_changes_while_suspended_alone(running: Namespace) -> None:
    running.submit("wired", network={"profile": "tcp"})
    running.until_phase("Running", "wired")
    with pytest.raises(RefusedError, match=r"network.profile can be changed only while the job is suspended"):
        running.change("wired", network={"profile": "efa"})
    running.change("wired", lifecycle={"suspend": True})
    running.change("wired", network={"profile": "efa"}, lifecycle={"suspend": False})

    def stamps() -> set[str]:
        pods = running.pods("wired").values()
        return {pod["metadata"]["annotations"]["trainyard.dev/network-profile"].partition("@")[0] for pod in pods}

    until(lambda: stamps() == {"efa"}, 30, "pods with the other profile")
    running.until_phase("Running", "wired")
    assert running.status("wired")["restarts"]["failures"] == 0
    assert any(note.startswith("network.profile efa sets") for note in running.events("NetworkProfileApplied", "wired"))


def test_baseline_refuses_and_the_condition_explains(plane: Plane, running: Namespace) -> None:
    label = "pod-security.kubernetes.io/enforce"
    plane.call("PATCH", LAB, {"metadata": {"labels": {label: "baseline"}}}, MERGE)
    try:
        running.submit("wired", network={"profile": "infiniband"})
        until(lambda: running.condition("Running", "wired").get("reason") == "PodsForbidden", 30, "the condition")
        message = running.condition("Running", "wired")["message"]
        assert message.startswith(
            "network.profile infiniband adds the capability IPC_LOCK, which the baseline standard"
        )
        assert 'violates PodSecurity "baseline' in message
    finally:
        plane.call("PATCH", LAB, {"metadata": {"labels": {label: None}}}, MERGE)
    running.until_phase("Running", "wired", within=60)
    assert running.status("wired")["restarts"]["failures"] == 0
