"""What a network profile sets in a template: a value of the user stays, what cannot be set is left out, and both are reported."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.network_pods import GPUS, WITH_IMAGES, network_pod
from trainyard.api.roles import member_index
from trainyard.scheduling.network_profile import NetworkProfile, named
from trainyard.scheduling.worker_network import MULTUS, Facts, all_facts, covers, privileges, with_network

Json = dict[str, Any]
RDMA, EFA, TCP, TCPXO = (WITH_IMAGES[name] for name in ("rdma", "efa", "tcp", "gpudirect-tcpxo"))
SIDECAR = {"name": "helper", "image": "helper:1"}


def template(pod: Json | None = None, metadata: Json | None = None, **main: Any) -> Json:
    first = {"name": "main", "image": "trainer:1", "resources": GPUS, **main}
    made: Json = {"spec": {"containers": [first, SIDECAR], **(pod or {})}}
    return {**made, "metadata": metadata} if metadata else made


def own(**fields: Any) -> Any:
    return named("own", NetworkProfile.model_validate(fields))


def main_of(made: Json) -> Json:
    main: Json = made["spec"]["containers"][0]
    return main


class TestResources:
    def test_amount_of_the_user_stays(self) -> None:
        limits = {"vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "1Gi", "memory": "1Ti"}
        made = with_network(template(resources={"limits": limits}), EFA)
        assert main_of(made.template)["resources"] == {"limits": limits}
        assert not any("efa" in each for each in (*made.facts.done, *made.facts.kept))

    def test_amount_in_requests_stays_too(self) -> None:
        asked = {"requests": {"vpc.amazonaws.com/efa": 4, "cpu": 1}}
        made = main_of(with_network(template(resources=asked), EFA).template)["resources"]
        assert made == {**asked, "limits": {"hugepages-2Mi": "5120Mi"}}

    @pytest.mark.parametrize("resources", [None, {}, {"limits": None}, {"limits": {"nvidia.com/gpu": 8}}])
    def test_huge_pages_need_memory_or_cpu(self, resources: Json | None) -> None:
        made = with_network(template(resources=resources), EFA)
        assert "hugepages-2Mi" not in main_of(made.template)["resources"]["limits"]
        assert "requests neither memory nor cpu" in made.facts.left_out[0]

    def test_memory_of_the_pod_suffices_for_huge_pages(self) -> None:
        pod = {"resources": {"requests": {"memory": "1Gi"}}}
        made = with_network(template(pod, resources=None), EFA)
        assert main_of(made.template)["resources"]["limits"]["hugepages-2Mi"] == "5120Mi"


class TestCapabilities:
    @pytest.mark.parametrize(
        ("context", "added", "kept"),
        [
            pytest.param(None, ["IPC_LOCK"], (), id="none"),
            pytest.param({"runAsUser": 1}, ["IPC_LOCK"], (), id="another field"),
            pytest.param({"capabilities": {"add": ["NET_RAW"]}}, ["NET_RAW", "IPC_LOCK"], (), id="another one"),
            pytest.param({"capabilities": {"add": ["IPC_LOCK"]}}, ["IPC_LOCK"], (), id="the same"),
            pytest.param({"capabilities": {"add": ["CAP_IPC_LOCK"]}}, ["CAP_IPC_LOCK"], (), id="its other name"),
            pytest.param({"capabilities": {"add": ["ALL"]}}, ["ALL"], (), id="all"),
            pytest.param({"capabilities": {"drop": ["ALL"]}}, ["IPC_LOCK"], (), id="all others dropped"),
            pytest.param({"capabilities": {"drop": ["IPC_LOCK"]}}, None, ("drop IPC_LOCK",), id="dropped by name"),
            pytest.param({"privileged": True}, None, (), id="privileged"),
        ],
    )
    def test_of_the_user_stay(self, context: Json | None, added: list[str] | None, kept: tuple[str, ...]) -> None:
        made = with_network(template(securityContext=context, resources={"limits": {"rdma/x": 1}}), RDMA)
        result = main_of(made.template).get("securityContext") or {}
        assert (result.get("capabilities") or {}).get("add") == added
        assert made.facts.kept == kept
        assert {**(context or {}), **result} == result


class TestVariables:
    def test_value_of_the_user_stays_and_is_reported(self) -> None:
        given_env = [{"name": "NCCL_SOCKET_IFNAME", "value": "ens5"}, {"name": "NCCL_NET", "value": "Socket"}]
        made = with_network(template(env=given_env), TCP)
        assert main_of(made.template)["env"] == [{"name": "GLOO_SOCKET_IFNAME", "value": "eth0"}, *given_env]
        assert made.facts.kept == ("NCCL_SOCKET_IFNAME=ens5",)
        assert made.facts.done == ("GLOO_SOCKET_IFNAME=eth0",)

    def test_value_from_a_secret_stays(self) -> None:
        given_env = [{"name": "NCCL_NET", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]
        made = with_network(template(env=given_env), TCP)
        assert given_env[0] in main_of(made.template)["env"]
        assert made.facts.kept == ("NCCL_NET (valueFrom)",)

    def test_none_beside_env_from(self) -> None:
        made = with_network(template(envFrom=[{"configMapRef": {"name": "nccl"}}]), TCP)
        assert "env" not in main_of(made.template)
        assert "NCCL_NET" in made.facts.left_out[0]
        assert "envFrom" in made.facts.left_out[0]

    def test_no_interface_on_the_hosts_network(self) -> None:
        made = with_network(template({"hostNetwork": True}), TCP)
        assert main_of(made.template)["env"] == [{"name": "NCCL_NET", "value": "Socket"}]

    def test_own_variable_wins_over_the_interface(self) -> None:
        profile = own(interface="net1", env={"NCCL_SOCKET_IFNAME": "net"})
        env = main_of(with_network(template(), profile).template)["env"]
        assert {v["name"]: v["value"] for v in env} == {"NCCL_SOCKET_IFNAME": "net", "GLOO_SOCKET_IFNAME": "net1"}

    def test_other_containers_get_none(self) -> None:
        assert with_network(template(), TCPXO).template["spec"]["containers"][1] == SIDECAR


class TestNetworks:
    def test_are_attached_in_order(self) -> None:
        made = with_network(template(metadata={"labels": {"a": "b"}}), own(networks=["lab/a", "a", "a"]))
        assert made.template["metadata"] == {"labels": {"a": "b"}, "annotations": {MULTUS: "lab/a,a,a"}}

    def test_of_the_user_stay(self) -> None:
        made = with_network(template(metadata={"annotations": {MULTUS: "mine"}}), own(networks=["a"]))
        assert made.template["metadata"]["annotations"] == {MULTUS: "mine"}
        assert made.facts.kept == (f"annotation {MULTUS}",)

    def test_none_on_the_hosts_network(self) -> None:
        made = with_network(template({"hostNetwork": True}), own(networks=["a", "b"]))
        assert "metadata" not in made.template
        assert "the networks a, b" in made.facts.left_out[0]


class TestVolumesAndSidecars:
    def test_volume_and_mount_of_the_user_stay(self) -> None:
        volume = {"name": "tcpxo-libraries", "hostPath": {"path": "/opt/nvidia"}}
        mount = {"name": "mine", "mountPath": "/dev/aperture_devices/"}
        made = with_network(template({"volumes": [volume]}, volumeMounts=[mount]), TCPXO)
        assert made.template["spec"]["volumes"][0] == volume
        assert [m["mountPath"] for m in main_of(made.template)["volumeMounts"]] == [
            mount["mountPath"],
            "/usr/local/nvidia",
        ]
        assert made.facts.kept == ("the mount at /dev/aperture_devices", "the volume tcpxo-libraries")

    @pytest.mark.parametrize("where", ["initContainers", "containers"])
    def test_container_of_the_user_stays(self, where: str) -> None:
        daemon = {"name": "tcpxo-daemon", "image": "mine:1"}
        given_template = template()
        given_template["spec"][where] = [*given_template["spec"].get(where, []), daemon]
        made = with_network(given_template, TCPXO)
        assert made.sidecars == []
        assert made.facts.kept == ("the container tcpxo-daemon",)

    def test_sidecars_start_first_and_end_with_the_worker(self) -> None:
        spec = network_pod(TCPXO, initContainers=[{"name": "load", "image": "loader:1"}])["spec"]
        assert [c["name"] for c in spec["initContainers"]] == ["tcpxo-daemon", "load"]
        assert spec["initContainers"][0]["restartPolicy"] == "Always"
        assert len(spec["containers"]) == 1

    def test_sidecars_get_no_variables_of_ranks(self) -> None:
        [daemon] = network_pod(TCPXO)["spec"]["initContainers"]
        assert [v["name"] for v in daemon["env"]] == ["LD_LIBRARY_PATH"]


class TestDevices:
    @pytest.mark.parametrize(
        "main",
        [
            pytest.param({"resources": {"limits": {"rdma/hca": 1}}}, id="requested"),
            pytest.param({"resources": {"claims": [{"name": "nic"}]}}, id="by a claim"),
            pytest.param({"securityContext": {"privileged": True}}, id="privileged"),
        ],
    )
    def test_that_the_container_has(self, main: Json) -> None:
        assert with_network(template(**main), RDMA).facts.left_out == ()

    def test_that_the_container_lacks(self) -> None:
        [missing] = with_network(template(), RDMA).facts.left_out
        assert "rdma/NAME" in missing


@pytest.mark.parametrize(
    ("index", "limits", "is_covered"),
    [
        pytest.param(0, {}, True, id="a worker without GPUs"),
        pytest.param(member_index("ps", 0), {}, False, id="a role without GPUs"),
        pytest.param(member_index("ps", 0), {"nvidia.com/gpu": 1}, True, id="a role with GPUs"),
        pytest.param(member_index("server", 0), {"rdma/x": 1}, True, id="a role with a device"),
        pytest.param(member_index("server", 0), {"vpc.amazonaws.com/efa": 1}, False, id="a role with another device"),
    ],
)
def test_members_with_devices_are_covered(index: int, limits: Json, is_covered: bool) -> None:  # noqa: FBT001 - a table
    made = template(resources={"limits": limits})
    assert covers(RDMA, index, made) is is_covered


def test_role_without_devices_is_left_alone() -> None:
    made = network_pod(RDMA, {"name": "main", "image": "trainer:1"}, index=member_index("ps", 0))
    assert "trainyard.dev/network-profile" not in made["metadata"]["annotations"]
    assert "securityContext" not in made["spec"]["containers"][0]


def test_facts_of_members_are_listed_once() -> None:
    both = all_facts([Facts(("a", "b"), ("c",)), Facts(("b",), ("c",), ("d",))])
    assert both == Facts(("a", "b"), ("c",), ("d",))


@pytest.mark.parametrize(
    ("fields", "privileged"),
    [
        ({}, []),
        ({"capabilities": ["IPC_LOCK"]}, ["the capability IPC_LOCK"]),
        ({"volumes": [{"name": "a", "emptyDir": {}}]}, []),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/sys"}}]}, ["the node's /sys"]),
        (
            {"sidecars": [{"name": "a", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}]},
            ["NET_ADMIN for a"],
        ),
        ({"sidecars": [{"name": "a", "securityContext": {"privileged": True}}]}, ["privileged for a"]),
        ({"sidecars": [{"name": "a"}]}, []),
    ],
)
def test_what_pod_security_refuses(fields: Json, privileged: list[str]) -> None:
    assert privileges(NetworkProfile.model_validate(fields)) == privileged


NAMES = st.sampled_from(["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_NET", "LD_LIBRARY_PATH", "X"])
ENTRIES = st.dictionaries(NAMES, st.sampled_from(["eth0", "Socket", "mine"]), max_size=4)
QUANTITIES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "rdma/ib", "vpc.amazonaws.com/efa", "hugepages-2Mi"]),
    st.integers(0, 9),
    max_size=4,
)
CAPABILITIES = st.lists(st.sampled_from(["IPC_LOCK", "CAP_IPC_LOCK", "NET_RAW", "ALL"]), max_size=2, unique=True)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["networking.gke.io/interfaces", MULTUS, "a"]), st.just("mine"), max_size=3
)
MOUNTS = st.lists(st.sampled_from(["/usr/local/nvidia", "/run/tcpx", "/data"]), max_size=3, unique=True)


@st.composite
def templates(draw: st.DrawFn) -> Json:
    main = {
        "env": [{"name": name, "value": value} for name, value in draw(ENTRIES).items()],
        "resources": {"limits": draw(QUANTITIES), "requests": draw(QUANTITIES)},
        "securityContext": {"capabilities": {"add": draw(CAPABILITIES), "drop": draw(CAPABILITIES)}},
        "volumeMounts": [{"name": "mine", "mountPath": path} for path in draw(MOUNTS)],
    }
    if draw(st.booleans()):
        main["envFrom"] = [{"configMapRef": {"name": "nccl"}}]
    pod = {"hostNetwork": draw(st.booleans()), "volumes": [{"name": "mine"}, {"name": "gib", "emptyDir": {}}]}
    return template(pod, {"annotations": draw(ANNOTATIONS)}, **main)


def kept_within(before: Any, after: Any) -> bool:
    """Whether each value of the first is in the second: fields by name, entries of lists in the same order."""
    if isinstance(before, dict):
        return all(name in after and kept_within(value, after[name]) for name, value in before.items())
    if isinstance(before, list):
        rest = iter(after)
        return all(any(kept_within(each, other) for other in rest) for each in before)
    return bool(before == after)


@given(given_template=templates(), name=st.sampled_from([*WITH_IMAGES]))
def test_no_value_of_the_user_changes(given_template: Json, name: str) -> None:
    before = deepcopy(given_template)
    made = with_network(given_template, WITH_IMAGES[name])
    assert given_template == before
    assert kept_within(before, made.template)


@given(given_template=templates(), name=st.sampled_from([*WITH_IMAGES]))
def test_applying_twice_changes_nothing_more(given_template: Json, name: str) -> None:
    once = with_network(given_template, WITH_IMAGES[name])
    again = with_network(once.template, WITH_IMAGES[name])
    assert again.template == once.template
    assert set(again.facts.done) <= {f"sidecar {each['name']}" for each in once.sidecars}
    assert again.facts.kept == once.facts.kept
