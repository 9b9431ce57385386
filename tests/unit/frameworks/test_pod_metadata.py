"""Labels and annotations that keep autoscalers and meshes away from workers."""

import pytest

from tests.support.worker_pods import Json, worker
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.pod_metadata import REQUESTS, PodMetadata


def metadata_of(given: Json | None = None, defaults: PodMetadata | None = None) -> Json:
    made: Json = worker_pod(worker(metadata=given), defaults=defaults)["metadata"]
    return made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
        ("sidecar.istio.io/inject", "false"),
        ("linkerd.io/inject", "disabled"),
    ],
)
def test_known_annotations(name: str, value: str) -> None:
    assert metadata_of()["annotations"][name] == value
    assert metadata_of({"annotations": {name: "mine"}})["annotations"][name] == "mine"


def test_known_labels() -> None:
    assert (
        metadata_of()["labels"].items()
        >= {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}.items()
    )


def test_user_annotation_replaces_our_label() -> None:
    """Istio prefers the label: ours would defeat the user's annotation."""
    made = metadata_of({"annotations": {"sidecar.istio.io/inject": "true"}})
    assert made["annotations"]["sidecar.istio.io/inject"] == "true"
    assert "sidecar.istio.io/inject" not in made["labels"]


def test_user_label_replaces_our_annotation() -> None:
    made = metadata_of({"labels": {"sidecar.istio.io/inject": "true"}})
    assert made["labels"]["sidecar.istio.io/inject"] == "true"
    assert "sidecar.istio.io/inject" not in made["annotations"]


@pytest.mark.parametrize(("name", "refusal"), REQUESTS.items())
def test_other_request_for_a_mesh_is_followed(name: str, refusal: str) -> None:
    for kind in ("labels", "annotations"):
        made = metadata_of({kind: {name: "stable"}})
        assert made[kind][name] == "stable"
        assert refusal not in made["labels"].keys() | made["annotations"].keys()


def test_administrator_extends_and_replaces() -> None:
    extended = PodMetadata().overridden({"team": "ml"}, {"karpenter.sh/do-not-disrupt": "false", "note": "a"})
    made = metadata_of({"annotations": {"note": "b"}}, extended)
    assert made["labels"].items() >= {"team": "ml", "sidecar.istio.io/inject": "false"}.items()
    assert made["annotations"].items() >= {"karpenter.sh/do-not-disrupt": "false", "note": "b"}.items()


def test_own_labels_are_not_replaced() -> None:
    extended = PodMetadata().overridden({"trainyard.dev/index": "9"}, {"trainyard.dev/workers": "9"})
    made = metadata_of(defaults=extended)
    assert (made["labels"]["trainyard.dev/index"], made["annotations"]["trainyard.dev/workers"]) == ("1", "3")
