"""Builders of workers, and readers of the pods that are made for them."""

from typing import Any

from tests.support.jobs import job
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker

Json = dict[str, Any]
EIGHT_GPUS: Json = {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "64"}}


def container(name: str = "main", **fields: Any) -> Json:
    return {"name": name, "image": "trainer:1", **fields}


def worker(
    *containers: Json,
    index: int = 1,
    attempt: int = 2,
    pod: Json | None = None,
    metadata: Json | None = None,
    **spec: Any,
) -> Worker:
    """Worker 1 of 3, in attempt 2, unless given otherwise."""
    template = {"metadata": metadata, "spec": {"containers": list(containers or [container()]), **(pod or {})}}
    made = job(**{"replicas": 3, "template": template, **spec}).job
    return Worker(made, index, attempt, made.spec.replicas)


def environment_of(made: Worker, number: int = 0) -> Json:
    """Return {name: value or its source} of a container of the worker's pod, in which each name appears once."""
    variables = worker_pod(made)["spec"]["containers"][number]["env"]
    names = [v["name"] for v in variables]
    assert len(names) == len(set(names)), f"twice: {names}"
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in variables}
