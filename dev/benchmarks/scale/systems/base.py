"""What the benchmark must know of a system: how to start it, what its jobs look like, and when its status says that all run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from dev.benchmarks.scale.api import Api, wait
from dev.benchmarks.scale.fleet import NAMESPACE, Fleet
from dev.localcluster.paths import Paths

Json = dict[str, Any]
Post = tuple[str, Json]
"""A path, and the object to post to it."""

HOST: Final = "127.0.0.1"
METRICS_PORT: Final = 22401
PROBE_PORT: Final = 22402
WEBHOOK_PORT: Final = 22403
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_SECONDS: Final = 30.0
PODS_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class Ground:
    """The cluster under test, and the folder for results."""

    paths: Paths
    api: Api
    folder: Path
    """For files of a run."""

    def define(self, definition: Mapping[str, Any] | bytes) -> None:
        """Create a CRD, unless it exists, and wait until the API server serves it: some operators exit where they find none."""
        if (made := self.api.ensure(CRDS, definition)) is None:
            return
        spec = made["spec"]
        version = next(each["name"] for each in spec["versions"] if each["served"])
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        wait(lambda: self.api.exists(path), SERVED_SECONDS, f"the API server does not serve {path}")


@dataclass(frozen=True, slots=True)
class Command:
    """Command that starts an operator, and the address of its metrics."""

    argv: Sequence[str]
    metrics: str
    """The URL of its metrics."""
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """What the metrics ask for."""
    ready: str = "rest_client_requests_total"
    """What the metrics contain once the operator works."""


class Installable(ABC):
    """What can be installed into the cluster and started."""

    name: str

    @abstractmethod
    def install(self, ground: Ground) -> None:
        """Put into the cluster what the operator needs. Harmless when repeated."""

    @abstractmethod
    def command(self, ground: Ground) -> Command | None:
        """How to start it; None if there is nothing to start."""


class System(Installable):
    """One operator, or the plain client."""

    jobs_path: str | None = None
    """The path of its jobs; None for the plain client, which has none."""
    uses_job_controller: bool = False
    """Whether kube-controller-manager makes its pods, so that its work counts as the system's."""
    own_writes: frozenset[str] = frozenset()
    """Writes that only the operator makes, with the names of the API server's metrics."""
    other_writes: ClassVar[Mapping[str, str]] = {}
    """Its other writes by verb, if they are all of one kind."""

    after_failure: str = ""
    """What it does after a worker failure, if it does not restart the whole group."""

    @abstractmethod
    def load(self, fleet: Fleet) -> list[Post]:
        """The objects to post."""

    @abstractmethod
    def says(self, job: Mapping[str, Any], workers: int) -> bool:
        """Return whether the job's status reports that all workers run."""


def pod_template() -> Json:
    """Return the pod template of all systems. The training-operator requires this container name."""
    container = {
        "name": "pytorch",
        "image": "registry.invalid/train:1",
        "command": ["python", "train.py"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {"spec": {"containers": [container]}}
