"""The operator's caches."""

from typing import Any

import pytest

from tests.unit.controller.raw_job import RAW
from trainyard.controller.reconcile.caches import Cache
from trainyard.controller.reconcile.resources import job_record
from trainyard.kube.resource import PODS, SERVICES

LABELS = {"trainyard.dev/job-uid": "1"}


def owned(name: str, namespace: str = "lab", labels: dict[str, str] = LABELS) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": f"{namespace}/{name}",
            "name": name,
            "namespace": namespace,
            "resourceVersion": "9",
            "labels": labels,
            "ownerReferences": [{"uid": "1", "name": "job", "controller": True}],
        },
        "spec": {"containers": [{"name": "main"}]},
    }


def test_found_objects_are_cached() -> None:
    cache = Cache()
    job = job_record(RAW)
    assert cache.add_found(PODS, owned("job-worker-0-1"))
    assert not cache.add_found(PODS, owned("job-worker-0-1")), "it is known already"
    assert cache.add_found(SERVICES, owned("job"))
    snapshot = cache.snapshot(job)
    assert snapshot is not None
    assert ([pod.name for pod in snapshot.pods], snapshot.has_service) == (["job-worker-0-1"], True)


def test_objects_without_our_label_stay_unknown() -> None:
    cache = Cache()
    assert not cache.add_found(SERVICES, owned("job", labels={}))
    assert not cache.add_found(PODS, owned("job-worker-0-1", labels={}))
    assert not cache.add_found(PODS, owned("something"))


@pytest.mark.parametrize("name", ["job-debug-worker-0-1", "job-worker-00-1", "other-worker-0-1"])
def test_copy_under_another_name_is_no_worker(name: str) -> None:
    """It has the label and the owner of the worker whose pod was copied."""
    assert not Cache().add_found(PODS, owned(name))


def test_only_the_jobs_own_namespace_counts() -> None:
    cache = Cache()
    cache.add_found(PODS, owned("job-worker-0-1", namespace="mallory"))
    cache.add_found(SERVICES, owned("job", namespace="mallory"))
    snapshot = cache.snapshot(job_record(RAW))
    assert snapshot is not None
    assert (snapshot.pods, snapshot.has_service) == ((), False)
