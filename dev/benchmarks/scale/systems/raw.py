"""No operator: the same objects, posted by a plain client. What the API server can do at best."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground, Json, Post, System, pod_template
from dev.benchmarks.scale.systems.trainyard import JOBS, training_job
from trainyard.api.crd import custom_resource_definition
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker


class Raw(System):
    """The load generator itself, which is measured in the operator's stead."""

    name = "raw"
    own_writes = frozenset({"POST pods"})

    @override
    def install(self, ground: Ground) -> None:
        """Nothing is needed."""

    @override
    def command(self, ground: Ground) -> None:
        """Nothing is started."""

    @override
    def load(self, fleet: Fleet) -> list[Post]:
        """The pods that Trainyard makes."""
        return [(PODS_PATH, pod) for name in fleet.names() for pod in _pods(name, fleet.workers)]

    @override
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """There is no job to say anything."""
        return False


class RawWithJobs(Raw):
    """As `Raw`, and each job comes before its pods: what an operator of such jobs could reach at best."""

    name = "raw-with-jobs"

    @override
    def install(self, ground: Ground) -> None:
        """The CRD."""
        ground.define(custom_resource_definition())

    @override
    def load(self, fleet: Fleet) -> list[Post]:
        """The TrainingJobs, and the pods that Trainyard makes for them."""
        posts: list[Post] = []
        for name in fleet.names():
            posts.append((JOBS, training_job(name, fleet.workers)))
            posts += [(PODS_PATH, pod) for pod in _pods(name, fleet.workers)]
        return posts


def _pods(name: str, workers: int) -> list[Json]:
    """Return a job's pods without their owner: the garbage collector would delete pods whose owner does not exist."""
    spec = TrainingJobSpec.model_validate({"replicas": workers, "template": pod_template()})
    job = JobView(f"uid-of-{name}", NAMESPACE, name, 1, 1, spec, TrainingJobStatus())
    pods = [worker_pod(Worker(job, index, 1, workers)) for index in range(workers)]
    for pod in pods:
        del pod["metadata"]["ownerReferences"]
    return pods
