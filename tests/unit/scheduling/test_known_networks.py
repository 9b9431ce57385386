"""The known network profiles: each has a source, and a golden file of what it sets in a worker's pod."""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.network_pods import DAEMONS, GOLDEN, WITH_IMAGES, set_by
from trainyard.api.network import Network as NetworkField
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import NetworkProfile, with_own

PAGE = (Path(__file__).parents[3] / "docs/networks.md").read_text()


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_profile_sets_what_its_golden_file_has(name: str) -> None:
    assert set_by(WITH_IMAGES[name]) == yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())


def test_each_golden_file_has_a_profile() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == KNOWN_NETWORKS.keys()


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_each_value_has_a_source(name: str) -> None:
    assert KNOWN_NETWORKS[name].profile.source.startswith("https://")


def test_field_documents_each_profile() -> None:
    described = NetworkField.model_fields["profile"].description or ""
    words = {word.strip(".,") for word in described.split()}
    assert words >= {*KNOWN_NETWORKS, "auto:"}


def test_page_lists_each_profile() -> None:
    assert [name for name in KNOWN_NETWORKS if f"`{name}`" not in PAGE] == []


def test_examples_of_the_page_are_valid() -> None:
    [example] = re.findall(r"```yaml\n(networkProfiles:.*?)```", PAGE, re.DOTALL)
    own = yaml.safe_load(example)["networkProfiles"]
    made = with_own(KNOWN_NETWORKS, {name: NetworkProfile.model_validate(each) for name, each in own.items()})
    assert made["p5"].profile.resources["hugepages-2Mi"] == "5120Mi"
    assert made["gpudirect-tcpxo"].profile.sidecars[0]["image"].startswith("REGISTRY/")
    fields = {field.alias for field in NetworkProfile.model_fields.values()}
    assert [field for field in fields if f"`{field}`" not in PAGE] == []


def test_images_of_providers_are_not_fixed() -> None:
    lacking = {
        name: [each["name"] for each in known.profile.sidecars if "image" not in each]
        for name, known in KNOWN_NETWORKS.items()
        if known.profile.sidecars
    }
    assert lacking == {name: [each] for name, each in DAEMONS.items()}


@pytest.mark.parametrize("name", KNOWN_NETWORKS)
def test_mounts_have_their_volumes(name: str) -> None:
    profile = KNOWN_NETWORKS[name].profile
    mounts = [*profile.volume_mounts, *(m for each in profile.sidecars for m in each["volumeMounts"])]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in profile.volumes}
