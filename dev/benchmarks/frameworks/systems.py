"""The manifests of one training under both systems. They differ only in what each operator asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from dev.benchmarks.recovery.systems import (
    PROGRAM,
    RESTARTS,
    Job,
    System,
    Trainyard,
    peer_tolerations,
    pod_template,
    wrap,
)
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.systems.base import Json

RANKS: Final = 2
"""Ranks of each training, one in a pod."""
MPI_LAUNCH: Final = {
    "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
    "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
    "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
}
"""What the MPI operator sets for Open MPI 4, by the names that Open MPI 5 reads."""


@dataclass(frozen=True, slots=True)
class Pods:
    """What all pods of a training are made of."""

    image: str
    command: Sequence[str] = ("python3", *PROGRAM)
    memory: str = "512Mi"
    env: Mapping[str, str] = field(default_factory=dict)

    def template(self, job: Job, container: str, *, tolerations: Sequence[Json] = ()) -> Json:
        """Return the pod template, with a container of this name."""
        env = [{"name": name, "value": value} for name, value in self.env.items()]
        return pod_template(
            job,
            self.command,
            container=container,
            image=self.image,
            memory=self.memory,
            env=env,
            tolerations=tolerations,
        )


class Ours(Trainyard):
    """This operator, with the default settings of its chart."""

    def __init__(self, framework: str, pods: Pods, *, workers: int = RANKS, roles: Sequence[str] = ()) -> None:
        self._framework, self._pods = framework, pods
        self._workers, self._roles = workers, roles

    @override
    def manifest(self, job: Job) -> Json:
        """Return a TrainingJob."""
        spec: Json = {
            "framework": self._framework,
            "replicas": self._workers,
            "processesPerReplica": 1,
            "recovery": {"maxRestarts": RESTARTS},
            "template": self._pods.template(job, "worker"),
        }
        if self._roles:
            spec["roles"] = [{"name": role} for role in self._roles]
        return wrap("trainyard.dev/v1alpha1", "TrainingJob", job, spec)

    @override
    def has_ended(self, job: Mapping[str, Any]) -> bool:
        """Return whether it has succeeded or failed."""
        return "completionTime" in (job.get("status") or {})


class KubeflowJob(System):
    """A job of Kubeflow's training-operator whose failed members restart, as its examples have it: `restartPolicy: OnFailure`."""

    name = "training-operator"

    def __init__(self, kind: str, members: Mapping[str, int], pods: Pods) -> None:
        self._kind, self._members, self._pods = kind, members, pods
        self._framework = kind.removesuffix("Job").lower()
        self.jobs_path = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/{kind.lower()}s"

    @override
    def manifest(self, job: Job) -> Json:
        """Return the job. Its operator requires the name of the container."""
        container = {"tf": "tensorflow"}.get(self._framework, self._framework)
        members = {
            name: {
                "replicas": replicas,
                "restartPolicy": "OnFailure",
                "template": self._pods.template(job, container, tolerations=peer_tolerations()),
            }
            for name, replicas in self._members.items()
        }
        prefix = "xgb" if self._framework == "xgboost" else self._framework
        return wrap("kubeflow.org/v1", self._kind, job, {f"{prefix}ReplicaSpecs": members})

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return None: its status does not count them."""
        return None

    @override
    def has_ended(self, job: Mapping[str, Any]) -> bool:
        """Return whether it has succeeded or failed."""
        return has_condition(job, "Succeeded", "Failed")


class RayJob(System):
    """A RayJob of KubeRay, which submits the driver to the head. A failed job is run again, on a new cluster."""

    name = "kuberay"
    jobs_path = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayjobs"

    def __init__(self, pods: Pods, version: str) -> None:
        self._pods, self._version = pods, version

    @override
    def manifest(self, job: Job) -> Json:
        """Return the job. KubeRay gives the containers their commands."""
        template = self._pods.template(job, "ray", tolerations=peer_tolerations())
        del template["spec"]["containers"][0]["command"]
        head = {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": template}  # noqa: S104 - in its pod
        workers = {
            "groupName": "workers",
            "replicas": RANKS,
            "minReplicas": RANKS,
            "maxReplicas": RANKS,
            "rayStartParams": {"num-cpus": "1"},
            "template": template,
        }
        cluster = {"rayVersion": self._version, "headGroupSpec": head, "workerGroupSpecs": [workers]}
        spec: Json = {
            "entrypoint": " ".join(self._pods.command),
            "submissionMode": "HTTPMode",
            "backoffLimit": RESTARTS,
            "rayClusterSpec": cluster,
        }
        return wrap("ray.io/v1", "RayJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return the number of failed clusters."""
        return int((job.get("status") or {}).get("failed", 0))

    @override
    def has_ended(self, job: Mapping[str, Any]) -> bool:
        """Return whether no further cluster follows."""
        return (job.get("status") or {}).get("jobDeploymentStatus") in {"Complete", "Failed"}


class MpiJob(System):
    """An MPIJob: a pod for the launcher, and workers with an ssh server. Failed containers restart."""

    name = "mpi-operator"
    jobs_path = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"

    def __init__(self, pods: Pods) -> None:
        self._pods = pods

    @override
    def manifest(self, job: Job) -> Json:
        """Return the job. The launcher starts once all workers are ready."""
        launcher = self._pods.template(job, "mpi", tolerations=peer_tolerations())
        launcher["spec"]["containers"][0]["env"] += [
            {"name": name, "value": value} for name, value in MPI_LAUNCH.items()
        ]
        worker = self._pods.template(job, "mpi", tolerations=peer_tolerations())
        main = worker["spec"]["containers"][0]
        main["command"] = ["/usr/sbin/sshd", "-De", "-f", "/opt/ssh/sshd.conf"]
        main["readinessProbe"] = {"tcpSocket": {"port": 2222}, "periodSeconds": 1}
        members = {
            "Launcher": {"replicas": 1, "restartPolicy": "OnFailure", "template": launcher},
            "Worker": {"replicas": RANKS, "restartPolicy": "OnFailure", "template": worker},
        }
        spec: Json = {
            "slotsPerWorker": 1,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": "/opt/keys",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": RESTARTS},
            "mpiReplicaSpecs": members,
        }
        return wrap("kubeflow.org/v2beta1", "MPIJob", job, spec)

    @override
    def restarts(self, job: Mapping[str, Any]) -> int | None:
        """Return None: its status counts no restart of the launcher's container."""
        return None

    @override
    def has_ended(self, job: Mapping[str, Any]) -> bool:
        """Return whether it has succeeded or failed."""
        return has_condition(job, "Succeeded", "Failed")


def has_condition(job: Mapping[str, Any], *types: str) -> bool:
    """Return whether the status of the job has one of these conditions."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(each["type"] in types and each["status"] == "True" for each in conditions)
