"""The model of a network profile: what is refused, what another one extends, and which changes its stamp shows."""

from typing import Any

import pytest
from pydantic import ValidationError

from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import NetworkProfile, named, with_own

Json = dict[str, Any]


def profile(**fields: Any) -> NetworkProfile:
    return NetworkProfile.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param({"interfce": "eth0"}, "interfce", id="a field that does not exist"),
        pytest.param({"proof": {"resource": ["a/b"]}}, "resource", id="a field of proof that does not exist"),
        pytest.param({"env": {"A B": "1"}}, "A B", id="no name of a variable"),
        pytest.param({"env": {"MASTER_ADDR": "x"}}, "the operator sets MASTER_ADDR", id="a variable of ranks"),
        pytest.param({"env": {"TRAINYARD_X": "x"}}, "the operator sets TRAINYARD_X", id="a variable of ours"),
        pytest.param({"env": {"NCCL_DEBUG": 1}}, "NCCL_DEBUG", id="a number in place of a text"),
        pytest.param({"resources": {"rdma/x": "many"}}, "rdma/x", id="no quantity"),
        pytest.param({"resources": {"rdma/x": -1}}, "rdma/x", id="a negative quantity"),
        pytest.param({"capabilities": ["ipc_lock"]}, "capabilities", id="no capability"),
        pytest.param({"volumes": [{"hostPath": {"path": "/x"}}]}, "a volume needs name", id="a volume without name"),
        pytest.param({"volumeMounts": [{"name": "x"}]}, "a mount needs mountPath", id="a mount without path"),
        pytest.param({"sidecars": [{"image": "x"}]}, "a sidecar needs name", id="a sidecar without name"),
        pytest.param({"base": "auto"}, "choose another name", id="auto as base"),
    ],
)
def test_wrong_values_are_refused(fields: Json, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        profile(**fields)


def test_variable_that_only_resembles_a_rank() -> None:
    assert profile(env={"RANK_OFFSET": "1", "UCX_TLS": "rc"}).env == {"RANK_OFFSET": "1", "UCX_TLS": "rc"}


def test_unknown_base_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"p5.base: elastic is not a known profile: tcp, efa"):
        with_own(KNOWN_NETWORKS, {"p5": profile(base="elastic")})


class TestExtension:
    def test_of_a_base_by_name(self) -> None:
        made = with_own(KNOWN_NETWORKS, {"p5": profile(base="efa", resources={"vpc.amazonaws.com/efa": 32})})["p5"]
        assert made.profile.resources == {"vpc.amazonaws.com/efa": 32, "hugepages-2Mi": "5120Mi"}
        assert made.profile.interface == "eth0"
        assert made.profile.proof == KNOWN_NETWORKS["efa"].profile.proof
        assert made.of_chart

    def test_of_the_known_one_with_its_name(self) -> None:
        own = profile(sidecars=[{"name": "tcpxo-daemon", "image": "example.com/daemon:1"}], env={"NCCL_DEBUG": "INFO"})
        made = with_own(KNOWN_NETWORKS, {"gpudirect-tcpxo": own})["gpudirect-tcpxo"].profile
        known = KNOWN_NETWORKS["gpudirect-tcpxo"].profile
        assert made.sidecars == [{**known.sidecars[0], "image": "example.com/daemon:1"}]
        assert made.env == {**known.env, "NCCL_DEBUG": "INFO"}
        assert made.volumes == known.volumes
        assert made.host_network is False

    def test_adds_to_lists_and_replaces_other_values(self) -> None:
        own = profile(base="rdma", capabilities=["IPC_LOCK", "NET_RAW"], interface="net1", networks=["a", "a"])
        made = with_own(KNOWN_NETWORKS, {"mine": own})["mine"].profile
        assert made.capabilities == ["IPC_LOCK", "NET_RAW"]
        assert (made.interface, made.networks) == ("net1", ["a", "a"])
        assert made.devices == KNOWN_NETWORKS["rdma"].profile.devices

    def test_without_a_base_has_its_own_values_alone(self) -> None:
        assert with_own(KNOWN_NETWORKS, {"mine": profile(interface="net1")})["mine"].profile == profile(
            interface="net1"
        )

    def test_leaves_the_known_profiles_alone(self) -> None:
        made = with_own(KNOWN_NETWORKS, {"efa": profile(interface="net1")})
        assert made["efa"].profile.interface == "net1"
        assert KNOWN_NETWORKS["efa"].profile.interface == "eth0"
        assert [*made] == ["efa", *(name for name in KNOWN_NETWORKS if name != "efa")]


class TestStamp:
    def test_is_equal_for_equal_data(self) -> None:
        assert (
            named("a", profile(env={"X": "1", "Y": "2"})).stamp == named("a", profile(env={"Y": "2", "X": "1"})).stamp
        )

    @pytest.mark.parametrize("fields", [{"source": "x"}, {"advice": "x"}, {"proof": {"gpus": 1}}, {"sockets": True}])
    def test_ignores_what_changes_no_pod(self, fields: Json) -> None:
        assert named("a", profile(**fields)).stamp == named("a", profile()).stamp

    @pytest.mark.parametrize("fields", [{"env": {"X": "1"}}, {"interface": "eth1"}, {"networks": ["a"]}])
    def test_shows_what_changes_a_pod(self, fields: Json) -> None:
        assert named("a", profile(**fields)).stamp != named("a", profile()).stamp

    def test_begins_with_the_name(self) -> None:
        assert named("a", profile()).stamp.startswith("a@")
        assert named("a", profile()).stamp != named("b", profile()).stamp
