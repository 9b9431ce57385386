"""The systems that are measured: what the same training looks like for each, and where it tells of a restart."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from dev.benchmarks.recovery.milestones import WORKERS
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.systems import jobset, training_operator, trainyard
from dev.benchmarks.scale.systems.base import Json

IMAGE: Final = "localhost/trainyard/trainer:dev"
MOUNT: Final = "/bench"
CHECKPOINT_EVERY: Final = 10
"""Steps."""
PROGRAM: Final = (f"{MOUNT}/program.py", MOUNT, str(CHECKPOINT_EVERY))
RESTARTS: Final = 1000
HANG_SECONDS: Final = 10
TOLERATION_SECONDS: Final = 30
PORT: Final = 29500


@dataclass(frozen=True, slots=True)
class Job:
    """One training."""

    name: str
    folder: Path
    """On this machine, seen by all nodes: the program, the checkpoint and the milestones."""


class System(ABC):
    """One operator with the launcher that its users would choose."""

    name: str
    jobs_path: str
    tells_goodput: bool = False
    """Whether its jobs' status tells what their time went into."""

    @abstractmethod
    def manifest(self, job: Job) -> Json:
        """The job, as it is posted."""

    @abstractmethod
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """How many restarts the job's status tells; None where it never tells of them."""

    def spent(self, job: Mapping[str, Any]) -> Mapping[str, float] | None:  # noqa: ARG002 - those who tell of it look
        """Seconds of the job's time by what they went into, `productive` among them, as its status tells; None where it does not."""
        return None


class Trainyard(System):
    """This operator with the chart's defaults: its agent starts the ranks."""

    name = "trainyard"
    jobs_path = trainyard.JOBS
    tells_goodput = True

    @override
    def manifest(self, job: Job) -> Json:
        """A TrainingJob. The group is not started anew by anybody but the operator."""
        recovery = {"maxRestarts": RESTARTS, "hangTimeoutSeconds": HANG_SECONDS}
        spec = {"replicas": WORKERS, "recovery": recovery, "template": _template(job, ["python3", *PROGRAM])}
        return _object("trainyard.dev/v1alpha1", "TrainingJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Its attempts after the first."""
        return int((job.get("status") or {}).get("attempt", 1)) - 1

    @override
    def spent(self, job: Mapping[str, Any]) -> Mapping[str, float] | None:
        """Its goodput and the named losses."""
        told = (job.get("status") or {}).get("goodput")
        return {"productive": told["productiveSeconds"], **told["lostSeconds"]} if told else None


class TrainingOperator(System):
    """Kubeflow's training-operator with its elastic policy: torchrun starts the ranks anew, the kubelet torchrun."""

    name = "training-operator"
    jobs_path = training_operator.JOBS

    @override
    def manifest(self, job: Job) -> Json:
        """A PyTorchJob. A group of fixed size, as the other systems have it: torchrun then waits for nobody beyond the last one."""
        worker = {
            "replicas": WORKERS,
            "restartPolicy": "OnFailure",
            "template": _template(job, ["torchrun", *PROGRAM], tolerations=_tolerations()),
        }
        elastic = {
            "rdzvBackend": "c10d",
            "minReplicas": WORKERS,
            "maxReplicas": WORKERS,
            "nProcPerNode": 1,
            "maxRestarts": RESTARTS,
        }
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}}
        return _object("kubeflow.org/v1", "PyTorchJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Not told: torchrun restarts by itself."""
        return None


class JobSet(System):
    """JobSet: one failed worker, and the set makes all anew."""

    name = "jobset"
    jobs_path = jobset.JOBS

    @override
    def manifest(self, job: Job) -> Json:
        """A JobSet of one Indexed Job. The program is the container's first process, as it is where nobody puts a launcher before it."""
        env: list[Json] = [
            {
                "name": "RANK",
                "valueFrom": {
                    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
                },
            },
            {"name": "WORLD_SIZE", "value": str(WORKERS)},
            {"name": "MASTER_ADDR", "value": f"{job.name}-worker-0-0.{job.name}"},
            {"name": "MASTER_PORT", "value": str(PORT)},
        ]
        template = _template(job, self._command(), env=env, tolerations=_tolerations())
        template["spec"]["restartPolicy"] = "Never"
        work = {
            "parallelism": WORKERS,
            "completions": WORKERS,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        }
        spec = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": []},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "failurePolicy": {"maxRestarts": RESTARTS},
            "replicatedJobs": [
                {"name": "worker", "groupName": "default", "replicas": 1, "template": {"spec": work}},
            ],
        }
        return _object("jobset.x-k8s.io/v1alpha2", "JobSet", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Its own count."""
        return int((job.get("status") or {}).get("restarts", 0))

    def _command(self) -> list[str]:
        return ["python3", *PROGRAM]


class JobSetTorchrun(JobSet):
    """The same with torchrun before the program, as JobSet's own examples have it: it heeds SIGTERM, and ends the rank."""

    name = "jobset-torchrun"

    @override
    def _command(self) -> list[str]:
        place = [f"--nnodes={WORKERS}", "--nproc-per-node=1", "--node-rank=$(RANK)"]
        return ["torchrun", *place, "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)", *PROGRAM]


SYSTEMS: Final[Mapping[str, System]] = {
    system.name: system for system in (Trainyard(), TrainingOperator(), JobSet(), JobSetTorchrun())
}
DEFAULT: Final = ("trainyard", "training-operator", "jobset")


def _object(version: str, kind: str, job: Job, spec: Json) -> Json:
    metadata = {"name": job.name, "namespace": NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _template(job: Job, command: Sequence[str], *, env: Sequence[Json] = (), tolerations: Sequence[Json] = ()) -> Json:
    """The pod of every worker. Whatever makes training start sooner or not at all, all have the same of it."""
    variables = [
        {"name": "BENCH_JOB", "value": job.name},
        {"name": "BENCH_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        # Trainyard sets it by itself. Without it torchrun's next round finds keys of the one before (pytorch#135712), and often no end.
        {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},
    ]
    container = {
        # The name that the training-operator insists on.
        "name": "pytorch",
        "image": IMAGE,
        "command": list(command),
        "env": [*env, *variables],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [{"name": "bench", "mountPath": MOUNT}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"bench-job": job.name}},
    }
    spec: Json = {
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": [{"name": "bench", "hostPath": {"path": str(job.folder)}}],
    }
    if tolerations:
        spec["tolerations"] = list(tolerations)
    return {"metadata": {"labels": {"bench-job": job.name}}, "spec": spec}


def _tolerations() -> list[Json]:
    """What Trainyard gives its pods by itself; Kubernetes' own 300 seconds would be five minutes for nothing."""
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": TOLERATION_SECONDS,
        }
        for key in ("not-ready", "unreachable")
    ]
