"""Values of one attempt that a pod has for its whole life exclude a restart in place, wherever the template has them."""

from typing import Any

import pytest

from tests.support.jobs import job
from tests.unit.domain.recovering import after, made_in
from trainyard.domain.state.job_template import has_fixed_values

Json = dict[str, Any]
ATTEMPT = "$(TRAINYARD_ATTEMPT)"
SHELL = ["sh", "-c", "mkdir -p /out/$TRAINYARD_ATTEMPT"]
BY_LABEL = {"fieldRef": {"fieldPath": "metadata.labels['trainyard.dev/attempt']"}}


def template(main: Json | None = None, metadata: Json | None = None, **pod: Any) -> Json:
    container = {"name": "main", "image": "trainer:1", "command": ["python", "train.py"], **(main or {})}
    beside = pod.pop("beside", [])
    return {"metadata": metadata or {}, "spec": {"containers": [container, *beside], **pod}}


def another(**fields: Any) -> Json:
    return {"name": "other", "image": "tool:1", **fields}


def pod_fields(path: str) -> Json:
    """Return a volume of the downward API that has this field as a file."""
    return {"name": "pod", "downwardAPI": {"items": [{"path": "field", "fieldRef": {"fieldPath": path}}]}}


FIXED = {
    "main command": template({"command": ["train", f"--out=/out/{ATTEMPT}"]}),
    "main argument": template({"args": [f"/out/{ATTEMPT}"]}),
    "main variable": template({"env": [{"name": "OUT", "value": f"/out/{ATTEMPT}"}]}),
    "main variable of the label": template({"env": [{"name": "NUMBER", "valueFrom": BY_LABEL}]}),
    "escaped dollar before it": template({"args": [f"$${ATTEMPT}"]}),
    "subPathExpr": template({"volumeMounts": [{"name": "out", "mountPath": "/out", "subPathExpr": f"runs/{ATTEMPT}"}]}),
    "postStart": template({"lifecycle": {"postStart": {"exec": {"command": SHELL}}}}),
    "preStop": template({"lifecycle": {"preStop": {"exec": {"command": ["save", ATTEMPT]}}}}),
    "probe": template({"readinessProbe": {"exec": {"command": ["nc", "-z", "localhost", "${MASTER_PORT}"]}}}),
    "init container": template(initContainers=[another(command=SHELL)]),
    "init container's subPathExpr": template(
        initContainers=[another(volumeMounts=[{"name": "out", "mountPath": "/out", "subPathExpr": ATTEMPT}])]
    ),
    "init container's program": template(
        initContainers=[another(command=["python", "-c", 'import os; os.mkdir(os.environ["TRAINYARD_ATTEMPT"])'])]
    ),
    "native sidecar": template(initContainers=[another(restartPolicy="Always", args=[ATTEMPT])]),
    "another container's command": template(beside=[another(command=SHELL)]),
    "another container's variable": template(beside=[another(env=[{"name": "OUT", "value": ATTEMPT}])]),
    "volume": template(volumes=[{"name": "out", "csi": {"driver": "x", "volumeAttributes": {"path": ATTEMPT}}}]),
    "volume of the label": template(
        volumes=[{"name": "out", "downwardAPI": {"items": [{"path": "attempt", **BY_LABEL}]}}]
    ),
    "volume of all labels": template(volumes=[pod_fields("metadata.labels")]),
    "projected volume of all labels": template(
        volumes=[{"name": "pod", "projected": {"sources": [pod_fields("metadata.labels")]}}]
    ),
    "annotation": template(metadata={"annotations": {"example.com/out": ATTEMPT}}),
}
RENEWED = {
    "none": template(),
    "main command's shell": template({"command": SHELL}),
    "main command's escape": template({"args": [f"${ATTEMPT}"]}),
    "rank": template({"args": ["--rank=$(RANK)"]}),
    "volume of the pod's name": template(volumes=[pod_fields("metadata.name")]),
    "volume of one other label": template(volumes=[pod_fields("metadata.labels['team']")]),
    "pod name": template({"volumeMounts": [{"name": "out", "mountPath": "/out", "subPathExpr": "$(POD_NAME)"}]}),
    "longer name": template(beside=[another(args=["$(MY_TRAINYARD_ATTEMPTS)"])]),
    "variable set by hand": template(beside=[another(env=[{"name": "MASTER_PORT", "value": "29500"}])]),
    "number": template({"ports": [{"containerPort": 80}]}, terminationGracePeriodSeconds=5),
}


@pytest.mark.parametrize("where", FIXED)
def test_value_of_attempt_excludes_restart_in_place(where: str) -> None:
    scene = job(3, template=FIXED[where]).running().with_agents().reported_failed(1)
    assert made_in(after(scene)) == [2, 2, 2]
    assert not scene.job.pods_fit_other_sizes


@pytest.mark.parametrize("where", RENEWED)
def test_renewed_values_keep_the_pods(where: str) -> None:
    scene = job(3, template=RENEWED[where]).running().with_agents().reported_failed(1)
    assert made_in(after(scene)) == [1, 1, 1]
    assert scene.job.pods_fit_other_sizes


@pytest.mark.parametrize("name", ["TRAINYARD_REPLICAS", "WORLD_SIZE", "PET_NNODES", "PET_LOCAL_ADDR"])
def test_value_of_size_excludes_a_resize_in_place(name: str) -> None:
    made = job(2, template=template({"volumeMounts": [{"mountPath": "/out", "subPathExpr": f"$({name})"}]}))
    assert (has_fixed_values(made.spec), made.job.pods_fit_other_sizes) == (False, False)


def test_volume_of_annotations_excludes_resize_in_place() -> None:
    made = job(2, template=template(volumes=[pod_fields("metadata.annotations")]))
    assert (has_fixed_values(made.spec), made.job.pods_fit_other_sizes) == (False, False)
