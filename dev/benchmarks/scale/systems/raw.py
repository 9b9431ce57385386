"""No operator: the same pods, posted by a plain client. What the API server can take at best."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground, Json, System, pod_template
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
    def load(self, fleet: Fleet) -> tuple[str, list[Json]]:
        """The very pods that Trainyard makes, but for their owner: without it they would be collected as orphans."""
        spec = TrainingJobSpec.model_validate({"replicas": fleet.workers, "template": pod_template()})
        pods = []
        for name in fleet.names():
            job = JobView(f"uid-of-{name}", NAMESPACE, name, 1, 1, spec, TrainingJobStatus())
            pods += [worker_pod(Worker(job, index, 1, fleet.workers)) for index in range(fleet.workers)]
        for pod in pods:
            del pod["metadata"]["ownerReferences"]
        return PODS_PATH, pods

    @override
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """There is no job to say anything."""
        return False
