"""`spec`: the desired state of a job. Its defaults and rules are part of the CRD."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from trainyard.api.base import Model, rule
from trainyard.api.constants import MAX_REPLICAS
from trainyard.api.elastic import SCALED, Elastic
from trainyard.api.health import Health, health_rules
from trainyard.api.network import Network, network_rules
from trainyard.api.pod_template import pod_template_schema
from trainyard.api.recovery import DAY, Recovery
from trainyard.api.roles import MAX_ROLES, Role, role_rules
from trainyard.api.scheduling import Scheduling, scheduling_rules

YEAR = 366 * DAY
DEFAULT_GRACE_SECONDS = 30
"""Kubernetes' own `terminationGracePeriodSeconds`."""
MAX_GRACE_SECONDS = YEAR
"""The longest `terminationGracePeriodSeconds` that the operator uses; it treats a longer one as this."""
MAX_PROCESSES_PER_REPLICA = 1024
"""Processes of a worker: the most that an agent starts."""
MAX_PARALLELISM_DEGREE = 1024
"""The most ranks among which one dimension of a model is split."""
RANKS_FIT = (
    "replicas x processesPerReplica (the number of ranks) must be a multiple of parallelism.tensor x parallelism.pipeline"
    " x parallelism.context; change one of these numbers"
)
"""The message of the API server, and of the operator where only the operator can count the ranks."""
RUN_BY_AGENT = "self.framework in ['lightgbm', 'mpi', 'horovod', 'ray', 'flower']"
"""The frameworks whose command or servers the agent starts."""


class Framework(StrEnum):
    """How workers find each other."""

    TORCH = "torch"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"
    JAX = "jax"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    TENSORFLOW = "tensorflow"
    MPI = "mpi"
    HOROVOD = "horovod"
    RAY = "ray"
    DMLC = "dmlc"
    PADDLE = "paddle"
    FLOWER = "flower"
    NONE = "none"

    @property
    def forms_torch_group(self) -> bool:
        """Whether the ranks form a process group of torch.distributed."""
        return self in {Framework.TORCH, Framework.DEEPSPEED, Framework.MEGATRON}

    @property
    def forms_one_group(self) -> bool:
        """Whether all ranks train as one group, which the agents observe."""
        return self.forms_torch_group or self is Framework.JAX

    @property
    def meets_at_worker_0(self) -> bool:
        """Whether workers look for the address of worker 0 alone, or for none."""
        return self.forms_torch_group or self.starts_together

    @property
    def starts_together(self) -> bool:
        """Whether ranks start only once all workers run. Those of XGBoost give up on a tracker that is not there after six seconds."""
        return self in {
            Framework.XGBOOST,
            Framework.LIGHTGBM,
            Framework.TENSORFLOW,
            Framework.MPI,
            Framework.HOROVOD,
            Framework.DMLC,
            Framework.PADDLE,
        }

    @property
    def has_one_process(self) -> bool:
        """Whether one process of a worker drives all its accelerators, unless the user wants more."""
        return self in {Framework.TENSORFLOW, Framework.DMLC} or self.starts_servers

    @property
    def serves_at_import(self) -> bool:
        """Whether the import of the framework is the server on some members, so that no process may import it in advance."""
        return self is Framework.DMLC

    @property
    def needs_addresses(self) -> bool:
        """Whether each worker needs the IP addresses of all workers. LightGBM knows no host names, and agents do not wait for DNS."""
        return self in {Framework.LIGHTGBM, Framework.MPI, Framework.HOROVOD}

    @property
    def starts_servers(self) -> bool:
        """Whether the agent of each pod runs a server of the framework, and that of one role the user's command beside it."""
        return self in {Framework.RAY, Framework.FLOWER}

    @property
    def starts_remotely(self) -> bool:
        """Whether a launcher in one worker starts processes in the others, through their agents."""
        return self is Framework.MPI


class CleanPods(StrEnum):
    """The pods that are deleted when a job has finished."""

    RUNNING = "Running"
    ALL = "All"
    NONE = "None"


class Success(StrEnum):
    """The workers that decide about the success of the job."""

    ALL_WORKERS = "AllWorkers"
    WORKER_0 = "Worker0"


class Parallelism(Model):
    """How one copy of the model is distributed over ranks."""

    tensor: int = Field(default=1, ge=1, le=MAX_PARALLELISM_DEGREE)
    """Ranks among which the matrices of each layer are split. They exchange data in each layer, so keep them within a node."""
    pipeline: int = Field(default=1, ge=1, le=MAX_PARALLELISM_DEGREE)
    """Stages into which the layers are divided. Each stage sends its activations to the next one."""
    context: int = Field(default=1, ge=1, le=MAX_PARALLELISM_DEGREE)
    """Ranks among which each sequence is split."""

    @property
    def ranks(self) -> int:
        """The number of ranks that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context


class Lifecycle(Model):
    """When the job starts, stops and is deleted."""

    suspend: bool = False
    """While true, the job has no pods. Once false again, it resumes with a new attempt. A queue does not set it: see `scheduling.queue`."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=YEAR)
    """Seconds that the job may be active, in all attempts together, without suspensions and queues. After that the job fails."""
    startup_deadline_seconds: int | None = Field(default=None, ge=1, le=YEAR)
    """Seconds that an attempt may take until all its workers run (scheduling, image pull), without queues. After that the job fails."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=YEAR)
    """Seconds after completion after which the TrainingJob and all its objects are deleted. Not set: never."""
    clean_pods: CleanPods = CleanPods.RUNNING
    """The pods that are deleted when the job has finished. Running: those that still run; the others keep their logs. If the job failed,
    running workers are stopped instead: their pods keep the logs, and hold no accelerators. All: every pod. None: no pod."""
    keep_failed_pods_seconds: int | None = Field(default=None, ge=0, le=YEAR)
    """Seconds for which a failed job keeps its pods. After that they are deleted, with their logs. Not set: until the job is deleted."""
    success: Success | None = None
    """The workers that must exit with code 0 to complete the job: AllWorkers, or only Worker0. Not set: the members that decide by the
    rules of the framework: all workers, where it has no roles."""


PodTemplate = Annotated[dict[str, Any], WithJsonSchema(pod_template_schema())]


class TrainingJobSpec(Model):
    """Desired state of the job."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.framework == oldSelf.framework",
                    "framework cannot be changed; delete the TrainingJob and create it again",
                    fieldPath=".framework",
                    reason="FieldValueForbidden",
                ),
                rule(
                    f"!({RUN_BY_AGENT}) || self.recovery.agent != 'none'",
                    "lightgbm, mpi, horovod, ray and flower need the agent; leave recovery.agent out, or set framework to none",
                    fieldPath=".recovery.agent",
                ),
                rule(
                    # An empty command is the entry point of the image, beside which nothing would start the servers.
                    f"!({RUN_BY_AGENT})"
                    " || (self.template.spec.containers[0].?command.orValue([]).size() > 0"
                    " && (!has(self.roles) || self.roles.all(each, !has(each.command) || each.command.size() > 0)))",
                    "with this framework the agent runs the command of the first container, or of the role; set command",
                    fieldPath=".template",
                ),
                rule(
                    # Workers never end, so that no other choice is ever met.
                    "!(self.framework in ['ray', 'flower']) || !has(self.lifecycle.success)",
                    "with ray and flower the head or server decides; leave lifecycle.success out",
                    fieldPath=".lifecycle.success",
                ),
                rule(
                    "!(self.framework in ['tensorflow', 'dmlc', 'ray', 'flower'])"
                    " || type(self.processesPerReplica) != int || self.processesPerReplica == 1",
                    "with tensorflow, dmlc, ray or flower the operator starts one process in each worker; leave this out",
                    fieldPath=".processesPerReplica",
                ),
                *network_rules(),
                *health_rules(),
                rule(
                    "has(self.managedBy) == has(oldSelf.managedBy)"
                    " && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
                    "managedBy cannot be changed; delete the TrainingJob and create it again",
                    reason="FieldValueForbidden",
                ),
                rule(
                    "self.template == oldSelf.template || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
                    "template can be changed only while the job is suspended; set lifecycle.suspend to true first",
                    fieldPath=".template",
                    reason="FieldValueForbidden",
                ),
                rule(
                    "self.processesPerReplica == oldSelf.processesPerReplica || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
                    "processesPerReplica can be changed only while the job is suspended; set lifecycle.suspend to true first",
                    fieldPath=".processesPerReplica",
                    reason="FieldValueForbidden",
                ),
                rule(
                    "!has(self.parallelism) || type(self.processesPerReplica) != int"
                    " || (self.replicas * self.processesPerReplica)"
                    " % (self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context) == 0"
                    f" || ({SCALED})",
                    RANKS_FIT,
                    messageExpression="'replicas x processesPerReplica is %d, but must be a multiple of %d (parallelism.tensor x pipeline x"
                    " context); change one of these numbers'.format([self.replicas * self.processesPerReplica,"
                    " self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context])",
                    fieldPath=".parallelism",
                    optionalOldSelf=True,
                ),
                rule(
                    "!has(self.parallelism) || !has(self.elastic) || !has(self.elastic.sizes) || type(self.processesPerReplica) != int"
                    " || self.elastic.sizes.all(size, (size * self.processesPerReplica)"
                    " % (self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context) == 0)"
                    f" || ({SCALED})",
                    "each of elastic.sizes, times processesPerReplica, must be a multiple of parallelism.tensor x parallelism.pipeline"
                    " x parallelism.context; leave out the sizes that are not",
                    fieldPath=".elastic.sizes",
                    optionalOldSelf=True,
                ),
                rule(
                    "!has(self.elastic) || (has(self.elastic.sizes)"
                    " ? (self.elastic.sizes[0] <= self.replicas && self.replicas <= self.elastic.sizes[self.elastic.sizes.size() - 1])"
                    " : (self.replicas >= (has(self.elastic.minReplicas) ? self.elastic.minReplicas : self.elastic.multipleOf)"
                    " && (!has(self.elastic.maxReplicas) || self.replicas <= self.elastic.maxReplicas)))",
                    "replicas must lie within the bounds of elastic: from minReplicas to maxReplicas, or from the first to the last of sizes",
                    messageExpression="'replicas is %d, but elastic allows %d to %d; change replicas or the bounds in elastic'.format(["
                    "self.replicas, has(self.elastic.sizes) ? self.elastic.sizes[0]"
                    " : has(self.elastic.minReplicas) ? self.elastic.minReplicas : self.elastic.multipleOf,"
                    " has(self.elastic.sizes) ? self.elastic.sizes[self.elastic.sizes.size() - 1] : self.elastic.maxReplicas])",
                    fieldPath=".replicas",
                ),
                rule(
                    "!has(self.elastic) || (has(self.elastic.sizes) ? self.replicas in self.elastic.sizes"
                    f" : self.replicas % self.elastic.multipleOf == 0) || ({SCALED})",
                    "replicas must be a multiple of elastic.multipleOf, or one of elastic.sizes",
                    messageExpression="has(self.elastic.sizes)"
                    " ? 'replicas is %d, but must be one of elastic.sizes, %s; change one of them'"
                    ".format([self.replicas, self.elastic.sizes])"
                    " : 'replicas is %d, but must be a multiple of %d (elastic.multipleOf); change one of them'"
                    ".format([self.replicas, self.elastic.multipleOf])",
                    fieldPath=".replicas",
                    optionalOldSelf=True,
                ),
                rule(
                    "(has(self.parallelism) == has(oldSelf.parallelism)"
                    " && (!has(self.parallelism) || self.parallelism == oldSelf.parallelism))"
                    " || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
                    "parallelism can be changed only while the job is suspended; set lifecycle.suspend to true first",
                    fieldPath=".parallelism",
                    reason="FieldValueForbidden",
                ),
                rule(
                    # Two torchruns with different bounds would wait for different groups.
                    "self.recovery.agent != 'none' || (has(self.elastic) == has(oldSelf.elastic)"
                    " && (!has(self.elastic) || self.elastic == oldSelf.elastic))"
                    " || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
                    "without the agent, elastic can be changed only while the job is suspended; set lifecycle.suspend to true first",
                    fieldPath=".elastic",
                    reason="FieldValueForbidden",
                ),
                *role_rules(),
                *scheduling_rules(),
                rule(
                    # Half of a group with the agent and half without it would not find each other.
                    "self.recovery.agent == oldSelf.recovery.agent || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
                    "recovery.agent can be changed only while the job is suspended; set lifecycle.suspend to true first",
                    fieldPath=".recovery.agent",
                    reason="FieldValueForbidden",
                ),
            ],
        },
    )

    framework: Framework = Framework.TORCH
    """How workers find each other. torch: the variables of torchrun and torch.distributed are set. deepspeed: as
    torch. `deepspeed train.py` starts the ranks of one group, without ssh or a file of hosts. With megatron,
    CUDA_DEVICE_MAX_CONNECTIONS is set as well, where parallel sizes need it. With jax, `jax.distributed.initialize()` finds all processes
    without arguments. With xgboost, ranks get the address of the tracker; with lightgbm, the list of machines. With
    tensorflow TF_CONFIG is set, with dmlc (MXNet, BytePS) DMLC_*, with paddle PADDLE_*. With mpi, worker 0 runs `mpirun`, which starts daemons in the other workers without ssh.
    With horovod, `hvd.init()` finds all ranks. With ray or flower, the command runs on the role head or server. With none, only TRAINYARD_* is set."""
    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Desired number of worker pods. `kubectl scale` sets it. A change restarts the group with the new number. With the agent, the
    remaining workers keep their pods and train until the joining workers are ready."""
    elastic: Elastic | None = None
    """The sizes that the group may have. Not set: the group has exactly the size `replicas`."""
    processes_per_replica: Annotated[
        int | Literal["auto"],
        WithJsonSchema(
            {
                "x-kubernetes-int-or-string": True,
                "x-kubernetes-validations": [
                    rule(
                        f"type(self) == int ? (self >= 1 && self <= {MAX_PROCESSES_PER_REPLICA}) : self == 'auto'",
                        f"processesPerReplica must be a number from 1 to {MAX_PROCESSES_PER_REPLICA}, or auto",
                    ),
                ],
            },
        ),
    ] = "auto"
    """Training processes in each worker. auto: the number of accelerators of the main container, or 1 if it has none. TPUs get 1 process
    for each worker, as JAX and PJRT expect. So do MIG slices: CUDA shows a process only one. The operator warns about accelerators that it
    cannot count: set the number for these."""
    template: PodTemplate
    """The pod of every worker. The first container is the main one: its exit code is the worker's. It is found by its name, so containers
    that admission adds, wherever they are, neither complete nor fail the job."""
    roles: list[Role] = Field(
        default=[],
        max_length=MAX_ROLES,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Members of the group beside its workers, where the framework has such roles."""
    parallelism: Parallelism | None = None
    """How one copy of the model is distributed over ranks. The data parallel size is replicas x processesPerReplica divided by the product
    of these, without a remainder. Workers receive it in TRAINYARD_PARALLELISM, and `trainyard_torch` builds its DeviceMesh from it.
    Not set: all ranks are data parallel."""
    network: Network = Network()
    """How workers reach each other."""
    scheduling: Scheduling = Scheduling()
    """When and where the pods start, and how their ranks follow from that."""
    health: Health = Health()
    """What is tested of nodes before they train."""
    recovery: Recovery = Recovery()
    """What happens when workers fail."""
    lifecycle: Lifecycle = Lifecycle()
    """When the job starts, stops and is deleted."""
    managed_by: str | None = Field(default=None, min_length=3, max_length=63, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    """The controller that manages this job, as domain/name. Not set, or trainyard.dev/operator: this operator. With any other value, the
    operator writes nothing, not even the status."""

    @property
    def grace_seconds(self) -> int:
        """The termination grace period of a worker's pod, in seconds."""
        seconds = self.template["spec"].get("terminationGracePeriodSeconds")
        return DEFAULT_GRACE_SECONDS if seconds is None else min(max(0, seconds), MAX_GRACE_SECONDS)
