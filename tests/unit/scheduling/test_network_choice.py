"""Which network profile a job gets: by name, or for `auto` by what its template proves."""

from typing import Any

import pytest

from tests.support.jobs import spec
from tests.support.network_pods import WITH_IMAGES
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_choice import Choice, choose_network
from trainyard.scheduling.network_profile import NetworkProfile, NetworkProfiles, with_own

Json = dict[str, Any]
INSTANCE = "node.kubernetes.io/instance-type"


def chosen(
    profile: str | None, limits: Json | None = None, networks: NetworkProfiles = WITH_IMAGES, **pod: Any
) -> Choice:
    main = {"name": "main", "image": "trainer:1", "resources": {"limits": limits or {}}}
    return choose_network(
        spec(network={"profile": profile}, template={"spec": {"containers": [main], **pod}}), networks
    )


def own(**profiles: Json) -> NetworkProfiles:
    return with_own(WITH_IMAGES, {name: NetworkProfile.model_validate(each) for name, each in profiles.items()})


def test_no_profile_sets_nothing() -> None:
    assert chosen(None, {"vpc.amazonaws.com/efa": 4}) == Choice()


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_profile_by_name(name: str) -> None:
    assert chosen(name) == Choice(WITH_IMAGES[name])


def test_unknown_profile_lists_the_known_ones() -> None:
    problem = chosen("eth").problem
    assert "knows no network.profile eth" in problem
    assert "auto, coreweave-infiniband, efa, " in problem
    assert "networkProfiles of the chart" in problem


def test_sidecar_without_image_is_a_problem() -> None:
    choice = chosen("gpudirect-tcpxo", networks=KNOWN_NETWORKS)
    assert choice.network is None
    assert "needs the image of its sidecar tcpxo-daemon" in choice.problem
    assert "networkProfiles.gpudirect-tcpxo.sidecars" in choice.problem


@pytest.mark.parametrize("where", ["initContainers", "containers"])
def test_sidecar_of_the_template_needs_no_image(where: str) -> None:
    daemon = {"name": "tcpxo-daemon", "image": "example.com/daemon:1"}
    main = {"name": "main", "image": "trainer:1"}
    pod = {"containers": [main], where: [main, daemon] if where == "containers" else [daemon]}
    job = spec(network={"profile": "gpudirect-tcpxo"}, template={"spec": pod})
    assert choose_network(job, KNOWN_NETWORKS).network == KNOWN_NETWORKS["gpudirect-tcpxo"]


def test_own_profile_that_excludes_the_hosts_network() -> None:
    networks = own(site={"hostNetwork": False})
    assert (
        "network.profile site does not work with hostNetwork"
        in chosen("site", None, networks, hostNetwork=True).problem
    )
    assert chosen("site", None, networks).network == networks["site"]
    assert chosen("rdma", hostNetwork=True).network == WITH_IMAGES["rdma"]


@pytest.mark.parametrize(
    ("limits", "pod", "name", "proof"),
    [
        pytest.param({"vpc.amazonaws.com/efa": 4}, {}, "efa", "resource vpc.amazonaws.com/efa", id="a device of AWS"),
        pytest.param({"rdma/hca_a": 1}, {}, "rdma", "resource rdma/hca_a", id="a shared device"),
        pytest.param({"nvidia.com/sriov-rdma-vf": 16}, {}, "rdma", "resource nvidia.com/sriov-rdma-vf", id="SR-IOV"),
        pytest.param(
            {"openshift.io/mlnxnics": 1}, {}, "rdma", "resource openshift.io/mlnxnics", id="SR-IOV of OpenShift"
        ),
        pytest.param(
            {"networking.gke.io.networks/rdma-0": 1, "nvidia.com/gpu": 8},
            {},
            "gpudirect-rdma",
            "resource networking.gke.io.networks/rdma-0",
            id="a network of GKE",
        ),
        pytest.param(
            {"nvidia.com/gpu": 8},
            {"nodeSelector": {INSTANCE: "a3-megagpu-8g"}},
            "gpudirect-tcpxo",
            f"node label {INSTANCE}=a3-megagpu-8g",
            id="an instance type",
        ),
        pytest.param(
            {"nvidia.com/gpu": 8},
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}},
            "gpudirect-tcpxo",
            "node label cloud.google.com/gke-accelerator=nvidia-h100-mega-80gb",
            id="an accelerator of one machine type",
        ),
    ],
)
def test_auto_takes_what_is_proved(limits: Json, pod: Json, name: str, proof: str) -> None:
    assert chosen("auto", limits, **pod) == Choice(WITH_IMAGES[name], proof)


@pytest.mark.parametrize(
    ("limits", "pod"),
    [
        pytest.param({"nvidia.com/gpu": 8}, {}, id="GPUs alone"),
        pytest.param({"nvidia.com/gpu": 8}, {"nodeSelector": {INSTANCE: "p5.48xlarge"}}, id="a type without a proof"),
        pytest.param({"nvidia.com/gpu": 1}, {"nodeSelector": {INSTANCE: "a3-megagpu-8g"}}, id="a part of a node"),
        pytest.param(
            {"nvidia.com/gpu": 8},
            {"nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}},
            id="an accelerator of several machine types",
        ),
    ],
)
def test_auto_sets_nothing_without_proof(limits: Json, pod: Json) -> None:
    choice = chosen("auto", limits, **pod)
    assert (choice.network, choice.problem) == (None, "")
    assert "auto sets nothing" in choice.note


def affinity(*terms: list[Json], kind: str = "requiredDuringSchedulingIgnoredDuringExecution") -> Json:
    return {"nodeAffinity": {kind: {"nodeSelectorTerms": [{"matchExpressions": each} for each in terms]}}}


def within(*values: str, operator: str = "In") -> Json:
    return {"key": INSTANCE, "operator": operator, "values": [*values]}


ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}


@pytest.mark.parametrize(
    ("asked", "is_proof"),
    [
        pytest.param(affinity([ZONE, within("a3-ultragpu-8g", "a4-highgpu-8g")]), True, id="two types of one network"),
        pytest.param(affinity([within("a4-highgpu-8g")], [within("a3-ultragpu-8g")]), True, id="in each term"),
        pytest.param(affinity([within("a4-highgpu-8g", "p5.48xlarge")]), False, id="another type, too"),
        pytest.param(affinity([within("a4-highgpu-8g")], [ZONE]), False, id="not in each term"),
        pytest.param(affinity([within("a4-highgpu-8g", operator="NotIn")]), False, id="excluded"),
        pytest.param(affinity(), False, id="no term"),
        pytest.param({"nodeAffinity": None}, False, id="no affinity"),
    ],
)
def test_required_affinity_is_a_proof(asked: Json, is_proof: bool) -> None:  # noqa: FBT001 - a table
    found = chosen("auto", {"nvidia.com/gpu": 8}, affinity=asked).network
    assert found == (WITH_IMAGES["gpudirect-rdma"] if is_proof else None)


def test_preferred_affinity_is_no_proof() -> None:
    asked = affinity([within("a4-highgpu-8g")], kind="preferredDuringSchedulingIgnoredDuringExecution")
    assert chosen("auto", {"nvidia.com/gpu": 8}, affinity=asked).network is None


def test_auto_prefers_profiles_of_the_chart() -> None:
    networks = own(site={"base": "rdma", "proof": {"resources": ["rdma/*"]}})
    assert chosen("auto", {"rdma/x": 1}, networks).network == networks["site"]
    assert chosen("auto", {"vpc.amazonaws.com/efa": 1}, networks).network == WITH_IMAGES["efa"]


def test_auto_does_not_choose_between_two() -> None:
    proof = {"proof": {"resources": ["rdma/*"]}}
    choice = chosen("auto", {"rdma/x": 1}, own(one=proof, two=proof))
    assert choice.network is None
    assert "several profiles, one, two" in choice.note


def test_auto_sets_nothing_where_an_image_lacks() -> None:
    selector = {INSTANCE: "a3-megagpu-8g"}
    choice = chosen("auto", {"nvidia.com/gpu": 8}, KNOWN_NETWORKS, nodeSelector=selector)
    assert (choice.network, choice.problem) == (None, "")
    assert "needs the image of its sidecar" in choice.note


def test_auto_sets_nothing_on_the_hosts_network() -> None:
    selector = {INSTANCE: "a3-megagpu-8g"}
    choice = chosen("auto", {"nvidia.com/gpu": 8}, nodeSelector=selector, hostNetwork=True)
    assert choice.network is None
    assert "does not work with hostNetwork" in choice.note
