"""The measured systems: the manifest of the same training for each, and where it reports a restart."""

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
    """Folder on this machine that all nodes mount: program, checkpoint and milestones."""


class System(ABC):
    """One operator with its usual launcher."""

    name: str
    jobs_path: str
    reports_goodput: bool = False
    """Whether the status of its jobs reports goodput."""

    @abstractmethod
    def manifest(self, job: Job) -> Json:
        """Return the manifest of the job."""

    @abstractmethod
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return the number of restarts in the job's status; None if it never reports them."""

    def has_ended(self, job: Mapping[str, Any]) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether its status says that the job is over, so that no recovery will follow."""
        return False

    def spent(self, job: Mapping[str, Any]) -> Mapping[str, float] | None:  # noqa: ARG002 - for subclasses
        """Return the seconds in the status by category, including `productive`; None if it reports none."""
        return None


class Trainyard(System):
    """This operator with the chart's defaults: its agent starts the ranks."""

    name = "trainyard"
    jobs_path = trainyard.JOBS
    reports_goodput = True

    @override
    def manifest(self, job: Job) -> Json:
        """Return a TrainingJob. Only the operator restarts its group."""
        recovery = {"maxRestarts": RESTARTS, "hangTimeoutSeconds": HANG_SECONDS}
        spec = {"replicas": WORKERS, "recovery": recovery, "template": pod_template(job, ["python3", *PROGRAM])}
        return wrap("trainyard.dev/v1alpha1", "TrainingJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return the number of attempts after the first."""
        return int((job.get("status") or {}).get("attempt", 1)) - 1

    @override
    def spent(self, job: Mapping[str, Any]) -> Mapping[str, float] | None:
        """Return productive seconds and the named losses."""
        goodput = (job.get("status") or {}).get("goodput")
        return {"productive": goodput["productiveSeconds"], **goodput["lostSeconds"]} if goodput else None


class TrainingOperator(System):
    """Kubeflow's training-operator with its elastic policy: torchrun restarts the ranks, and the kubelet restarts torchrun."""

    name = "training-operator"
    jobs_path = training_operator.JOBS

    @override
    def manifest(self, job: Job) -> Json:
        """Return a PyTorchJob of fixed size, as for the other systems. torchrun then waits for no further worker."""
        worker = {
            "replicas": WORKERS,
            "restartPolicy": "OnFailure",
            "template": pod_template(job, ["torchrun", *PROGRAM], tolerations=peer_tolerations()),
        }
        elastic = {
            "rdzvBackend": "c10d",
            "minReplicas": WORKERS,
            "maxReplicas": WORKERS,
            "nProcPerNode": 1,
            "maxRestarts": RESTARTS,
        }
        spec = {"elasticPolicy": elastic, "pytorchReplicaSpecs": {"Worker": worker}}
        return wrap("kubeflow.org/v1", "PyTorchJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return None: torchrun does not report its restarts."""
        return None


class JobSet(System):
    """JobSet: one failed worker makes the set recreate all Jobs."""

    name = "jobset"
    jobs_path = jobset.JOBS

    @override
    def manifest(self, job: Job) -> Json:
        """Return a JobSet of one Indexed Job. The program is the container's first process, without a launcher."""
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
        template = pod_template(job, self._command(), env=env, tolerations=peer_tolerations())
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
        return wrap("jobset.x-k8s.io/v1alpha2", "JobSet", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return the count in its status."""
        return int((job.get("status") or {}).get("restarts", 0))

    def _command(self) -> list[str]:
        return ["python3", *PROGRAM]


class JobSetTorchrun(JobSet):
    """JobSet with torchrun, as in JobSet's own examples. torchrun handles SIGTERM and stops the rank."""

    name = "jobset-torchrun"

    @override
    def _command(self) -> list[str]:
        place = [f"--nnodes={WORKERS}", "--nproc-per-node=1", "--node-rank=$(RANK)"]
        return ["torchrun", *place, "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)", *PROGRAM]


SYSTEMS: Final[Mapping[str, System]] = {
    system.name: system for system in (Trainyard(), TrainingOperator(), JobSet(), JobSetTorchrun())
}
DEFAULT: Final = ("trainyard", "training-operator", "jobset")


def wrap(version: str, kind: str, job: Job, spec: Json) -> Json:
    """Return an object of this specification, named as the job."""
    metadata = {"name": job.name, "namespace": NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def pod_template(
    job: Job,
    command: Sequence[str],
    *,
    container: str = "pytorch",
    image: str = IMAGE,
    memory: str = "256Mi",
    env: Sequence[Json] = (),
    tolerations: Sequence[Json] = (),
) -> Json:
    """Return a pod template. Everything that affects the start is the same for all systems.

    Args:
        job: the training.
        command: what the container runs.
        container: its name. Kubeflow's training-operator requires one for each kind of jobs.
        image: its image.
        memory: what it requests.
        env: variables beside those of all systems.
        tolerations: none for Trainyard, which sets its own.
    """
    variables = [
        {"name": "BENCH_JOB", "value": job.name},
        {"name": "BENCH_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "GLOO_SOCKET_IFNAME", "value": "eth0"},
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        # Trainyard sets this itself. Without it, the next rendezvous of torchrun may hang on old keys (pytorch#135712).
        {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"},
    ]
    main = {
        "name": container,
        "image": image,
        "command": list(command),
        "env": [*env, *variables],
        "resources": {"requests": {"cpu": "100m", "memory": memory}},
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
        "containers": [main],
        "volumes": [{"name": "bench", "hostPath": {"path": str(job.folder)}}],
    }
    if tolerations:
        spec["tolerations"] = list(tolerations)
    return {"metadata": {"labels": {"bench-job": job.name}}, "spec": spec}


def peer_tolerations() -> list[Json]:
    """Return the tolerations that Trainyard sets by default; those of Kubernetes last 300 seconds."""
    return [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": TOLERATION_SECONDS,
        }
        for key in ("not-ready", "unreachable")
    ]
