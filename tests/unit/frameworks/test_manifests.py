"""The pod of a worker and the Service of a job."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.jobs import job
from tests.support.worker_pods import EIGHT_GPUS, Json, container, worker
from trainyard.domain.state.job_template import template_hash
from trainyard.frameworks.manifests import network_policy, service, worker_pod
from trainyard.frameworks.pod_metadata import ANNOTATIONS, LABELS
from trainyard.frameworks.worker_spec import Worker

OWNER = {
    "apiVersion": "trainyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "name": "train",
    "uid": "job-uid",
    "controller": True,
    "blockOwnerDeletion": True,
}
SHM = {"name": "trainyard-shm", "mountPath": "/dev/shm"}  # noqa: S108 - a mount point in a pod
PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
UNREACHABLE = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


def pod_spec(made: Worker) -> Any:
    return worker_pod(made)["spec"]


def test_metadata_of_a_worker() -> None:
    assert worker_pod(worker())["metadata"] == {
        "name": "train-worker-1-2",
        "namespace": "ns",
        "labels": {
            "trainyard.dev/job-name": "train",
            "trainyard.dev/job-uid": "job-uid",
            "trainyard.dev/role": "worker",
            "trainyard.dev/index": "1",
            "trainyard.dev/attempt": "2",
            **LABELS,
        },
        "annotations": {
            "trainyard.dev/workers": "3",
            "trainyard.dev/main-container": "main",
            "trainyard.dev/generation": "1",
            "trainyard.dev/template-hash": template_hash(worker().spec),
            "kubectl.kubernetes.io/default-container": "main",
            **ANNOTATIONS,
        },
        "ownerReferences": [OWNER],
    }


def test_labels_and_annotations_of_user_are_kept() -> None:
    asked = {
        "labels": {"team": "a", "sidecar.istio.io/inject": "true", "trainyard.dev/index": "9"},
        "annotations": {"note": "b", "sidecar.istio.io/inject": "true", "trainyard.dev/workers": "9"},
    }
    metadata = worker_pod(worker(metadata=asked))["metadata"]
    assert metadata["labels"].items() >= {"team": "a", "sidecar.istio.io/inject": "true"}.items()
    assert metadata["labels"]["trainyard.dev/index"] == "1"
    assert metadata["annotations"].items() >= {"note": "b", "sidecar.istio.io/inject": "true"}.items()
    assert metadata["annotations"]["trainyard.dev/workers"] == "3"


def test_template_without_metadata() -> None:
    template = {"spec": {"containers": [container()]}}
    assert worker_pod(Worker(job(3, template=template).job, 0, 1, 3))["metadata"]["name"] == "train-worker-0-1"


def test_hostname_and_subdomain() -> None:
    made = pod_spec(worker())
    assert (made["hostname"], made["subdomain"], made["restartPolicy"]) == ("train-worker-1", "train", "Never")
    assert made["enableServiceLinks"] is False
    assert "dnsPolicy" not in made


def test_host_network_keeps_cluster_dns() -> None:
    assert pod_spec(worker(pod={"hostNetwork": True}))["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod_spec(worker(pod={"hostNetwork": True, "dnsPolicy": "Default"}))["dnsPolicy"] == "Default"


def test_other_pod_fields_are_kept() -> None:
    asked = {"nodeSelector": {"gpu": "h200"}, "enableServiceLinks": True, "serviceAccountName": "me"}
    main = container(resources=EIGHT_GPUS, command=["python", "t.py"], terminationMessagePolicy="File")
    made = pod_spec(worker(main, pod=asked))
    assert {key: made[key] for key in asked} == asked
    assert {key: made["containers"][0][key] for key in main} == main


def test_termination_message_falls_back_to_logs() -> None:
    made = pod_spec(worker(container(), container("b")))
    assert {c["terminationMessagePolicy"] for c in made["containers"]} == {"FallbackToLogsOnError"}


def test_template_is_not_changed() -> None:
    made = worker(container(env=[{"name": "A", "value": "a"}], volumeMounts=[]), pod={"tolerations": []})
    before = deepcopy(made.spec.template)
    worker_pod(made)
    assert made.spec.template == before


class TestSharedMemory:
    def test_is_a_memory_volume_in_each_container(self) -> None:
        made = pod_spec(worker(container(), container("b", volumeMounts=None)))
        assert made["volumes"] == [{"name": "trainyard-shm", "emptyDir": {"medium": "Memory"}}]
        assert [c["volumeMounts"] for c in made["containers"]] == [[SHM], [SHM]]

    @pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/"])  # noqa: S108 - mount points in a pod
    def test_of_the_users_own_is_kept(self, path: str) -> None:
        mine = {"name": "mine", "mountPath": path}
        made = pod_spec(worker(container(volumeMounts=[mine]), container("b"), pod={"volumes": [{"name": "mine"}]}))
        assert [c["volumeMounts"] for c in made["containers"]] == [[mine], [SHM]]
        assert [v["name"] for v in made["volumes"]] == ["mine", "trainyard-shm"]

    @pytest.mark.parametrize(
        "asked",
        [
            pytest.param({"hostIPC": True}, id="the node's own"),
            pytest.param({"volumes": [{"name": "trainyard-shm"}]}, id="the name is taken"),
        ],
    )
    def test_is_left_alone(self, asked: Json) -> None:
        made = pod_spec(worker(pod=asked))
        assert "volumeMounts" not in made["containers"][0]
        assert made.get("volumes") == asked.get("volumes")

    def test_of_all_containers_their_own_needs_no_volume(self) -> None:
        assert "volumes" not in pod_spec(worker(container(volumeMounts=[{**SHM, "name": "x"}])))


@pytest.mark.parametrize(
    ("own", "added"),
    [
        pytest.param(None, UNREACHABLE, id="none"),
        pytest.param([{"key": "gpu", "operator": "Exists"}], UNREACHABLE, id="another taint's"),
        pytest.param([{"key": UNREACHABLE[1], "operator": "Exists"}], UNREACHABLE[:1], id="one of the two"),
        pytest.param([{"key": UNREACHABLE[1], "effect": "NoSchedule"}], UNREACHABLE, id="for another effect"),
        pytest.param([{"operator": "Exists"}], [], id="all taints"),
        pytest.param([{"operator": "Exists", "effect": "NoExecute"}], [], id="all taints that evict"),
        pytest.param([{"operator": "Exists", "effect": "NoSchedule"}], UNREACHABLE, id="all taints that do not"),
    ],
)
def test_tolerations(own: list[Json] | None, added: list[str]) -> None:
    made = pod_spec(worker(pod={"tolerations": own}))["tolerations"]
    kept = len(own or [])
    assert made[:kept] == (own or [])
    assert made[kept:] == [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30} for key in added
    ]


def test_service_is_headless_and_publishes_unready_workers() -> None:
    made = service(job(3).job)
    assert made["metadata"]["name"] == "train"
    assert made["metadata"]["ownerReferences"] == [OWNER]
    assert made["metadata"]["labels"]["trainyard.dev/job-uid"] == "job-uid"
    assert made["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"trainyard.dev/job-uid": "job-uid", "trainyard.dev/index": "0"},
    }


def test_network_policy_admits_workers_and_peers() -> None:
    scene = job(3)
    made, peer = (
        network_policy(scene.job, [PEER]),
        {"podSelector": {"matchLabels": {"trainyard.dev/job-uid": "job-uid"}}},
    )
    assert made["metadata"] == service(scene.job)["metadata"]
    assert made["spec"] == {**peer, "policyTypes": ["Ingress"], "ingress": [{"from": [peer, PEER]}]}
    labels = worker_pod(Worker(scene.job, 2, 1, scene.spec.replicas))["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, {"trainyard.dev/index": "0"}),
        ({"framework": "none"}, {}),
        ({"network": {"dnsNames": "All"}}, {}),
        ({"framework": "none", "network": {"dnsNames": "Master"}}, {"trainyard.dev/index": "0"}),
    ],
)
def test_workers_with_a_dns_name(fields: Json, named: dict[str, str]) -> None:
    scene = job(3, **fields)
    selector = service(scene.job)["spec"]["selector"]
    assert selector == {"trainyard.dev/job-uid": "job-uid", **named}
    labels = worker_pod(Worker(scene.job, 0, 1, scene.spec.replicas))["metadata"]["labels"]
    assert selector.items() <= labels.items()
