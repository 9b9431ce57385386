"""The cluster that the demo chooses, and its errors."""

import json
import shutil
from pathlib import Path

import pytest

from dev.demo import target
from dev.demo.commands import Cluster, DemoError

IMAGES = {"OPERATOR_IMAGE": "example.com/operator:1", "TRAINER_IMAGE": "example.com/trainer:1"}


def test_a_cluster_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    made = target.choose({"KUBE_CONTEXT": "mine", **IMAGES})
    assert made.kubectl_command("get", "tj") == ["/usr/bin/kubectl", "--context", "mine", "get", "tj"]
    assert made.images == {"operator": "example.com/operator:1", "trainer": "example.com/trainer:1"}
    assert (target.ROOT / made.job / "kustomization.yaml").exists()


def test_named_cluster_requires_image_references() -> None:
    with pytest.raises(DemoError, match="set OPERATOR_IMAGE too"):
        target.choose({"KUBE_CONTEXT": "mine", "TRAINER_IMAGE": "x"})


def test_kind_nodes_share_the_checkpoint_folder() -> None:
    nodes = json.loads(target.kind_nodes())["nodes"]
    assert [node["role"] for node in nodes] == ["control-plane", "worker", "worker", "worker"]
    assert {mount["containerPath"] for node in nodes[1:] for mount in node["extraMounts"]} == {target.KIND_SHARED}
    assert target.KIND_SHARED in (target.ROOT / "examples/digits/overlays/local/volume.yaml").read_text()


@pytest.mark.parametrize("overlay", ["base", "overlays/local", "overlays/kind"])
def test_each_overlay_exists(overlay: str) -> None:
    assert (target.ROOT / f"examples/digits/{overlay}/kustomization.yaml").exists()


def test_the_kubeconfig_reaches_the_programs() -> None:
    made = Cluster(Path("kubectl"), Path("helm"), kubeconfig=Path("/a/kubeconfig"))
    assert made.environment["KUBECONFIG"] == "/a/kubeconfig"
