"""What the benchmark must know of a system: how to start it, what its jobs look like, and when its status says that all run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from dev.benchmarks.scale.api import Api
from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.localcluster.paths import Paths

Json = dict[str, Any]

HOST: Final = "127.0.0.1"
METRICS_PORT: Final = 22401
PROBE_PORT: Final = 22402
WEBHOOK_PORT: Final = 22403
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PODS_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class Ground:
    """Where it all happens."""

    paths: Paths
    api: Api
    folder: Path
    """For files of a run."""


@dataclass(frozen=True, slots=True)
class Command:
    """How an operator is started, and where it tells of itself."""

    argv: Sequence[str]
    metrics: str
    """The URL of its metrics."""
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """What the metrics ask for."""


class System(ABC):
    """One operator, or the plain client."""

    name: str
    jobs_path: str | None = None
    """The path of its jobs; None for the plain client, which has none."""
    uses_job_controller: bool = False
    """Whether kube-controller-manager makes its pods, so that its work counts as the system's."""
    own_writes: frozenset[str] = frozenset()
    """The writes that nobody but the operator makes, as the API server's metrics name them."""
    other_writes: ClassVar[Mapping[str, str]] = {}
    """What its other writes are, by verb, where they are all of one sort."""

    after_failure: str = ""
    """What it does about a failed worker, where that is not to start the whole group anew."""

    @abstractmethod
    def install(self, ground: Ground) -> None:
        """Put into the cluster what the operator needs. Harmless when repeated."""

    @abstractmethod
    def command(self, ground: Ground) -> Command | None:
        """How to start it; None if there is nothing to start."""

    @abstractmethod
    def load(self, fleet: Fleet) -> tuple[str, list[Json]]:
        """The path to post to, and the objects."""

    @abstractmethod
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """Whether the job's status tells that all of its workers run."""


def pod_template() -> Json:
    """The same for everybody. The container's name is the one that the training-operator insists on."""
    container = {
        "name": "pytorch",
        "image": "registry.invalid/train:1",
        "command": ["python", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"spec": {"containers": [container]}}
