"""Builders of elastic groups, and what tests wait for while the groups scale up and down."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.failing_training import TRAIN
from tests.cluster.kube import Json, Kube, job, main_container, train_on_cpus

PATIENT: Json = {"shrinkAfterSeconds": 5, "growAfterSeconds": 5}
GPUS = 8
"""Of a node: one worker takes them all."""


def training(replicas: int, elastic: Json, **spec: Any) -> Json:
    manifest = job(framework="torch", replicas=replicas, processesPerReplica=1, elastic={**PATIENT, **elastic}, **spec)
    main_container(manifest)["command"] = ["python3", "-c", TRAIN]
    return manifest


def a_node_each(manifest: Json) -> Json:
    main_container(manifest)["resources"]["limits"] = {"nvidia.com/gpu": GPUS}
    return train_on_cpus(manifest)


def trains(kube: Kube, size: int, after: int = 0, seconds: float = 120) -> Json:
    """Return the status once so many ranks train in an attempt later than `after` and have reported steps of it."""

    def seen() -> bool:
        status = kube.status("job")
        internal = status.get("internal", {})
        group = internal.get("group", {}).get("size") or internal.get("joining", {}).get("currentSize")
        reported = status.get("goodput", {}).get("attempt", 0)
        return (
            status.get("phase") == "Running"
            and status["attempt"] > after
            and reported == status["attempt"]
            and (group is None or group == size)
            and f"attempt {reported} at port {29499 + reported} as one of {size}"
            in kube.run("logs", "-l", LABEL, "--tail=-1")
        )

    kube.until(seen, seconds, f"{size} ranks to train in an attempt after {after}")
    return kube.status("job")


LONG = pytest.mark.skipif(not os.environ.get("LONG"), reason="takes a minute or more: make test-long")
LABEL = "trainyard.dev/job-name=job,trainyard.dev/index=0"


@contextmanager
def closed(kube: Kube, node: str) -> Iterator[None]:
    """Cordon a node."""
    kube.run("cordon", node)
    try:
        yield
    finally:
        kube.run("uncordon", node)


def counts(status: Json, before: Json | None = None) -> tuple[int, int, int]:
    """Return the failures, disruptions and resizes since `before`."""
    now, then = status["restarts"], before["restarts"] if before else {}
    failures, disruptions, resizes = (now[kind] - then.get(kind, 0) for kind in ("failures", "disruptions", "resizes"))
    return failures, disruptions, resizes


def newest(kube: Kube, index: int) -> Json:
    """Return the newest pod of a worker."""
    pods = kube.find_all("pods", f"trainyard.dev/job-name=job,trainyard.dev/index={index}")
    return max(pods, key=lambda pod: int(pod["metadata"]["labels"]["trainyard.dev/attempt"]))
