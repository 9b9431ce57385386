"""Reasons: one enum for conditions, events, logs and metrics."""

from enum import StrEnum


class Reason(StrEnum):
    """A reason. Its docstring explains it to the user; `docs/reference/reasons.md` is generated from these."""

    WORKERS_PENDING = "WorkersPending"
    """The pods are being created, or the scheduler has not bound all of them to a node yet."""
    UNSCHEDULABLE = "Unschedulable"
    """The scheduler finds no node for a pod. The message is the scheduler's."""
    WORKERS_SCHEDULED = "WorkersScheduled"
    """Every worker has a node."""
    WORKERS_STARTING = "WorkersStarting"
    """Every worker has a node. Some containers do not run yet."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """A node cannot pull the image of a container. The kubelet keeps trying."""
    CONTAINER_CREATE_FAILED = "ContainerCreateFailed"
    """A node cannot create a container, for example because a ConfigMap or Secret is missing."""
    VOLUME_MOUNT_FAILED = "VolumeMountFailed"
    """A node cannot mount a volume of a pod: its ConfigMap, Secret, key or PersistentVolumeClaim is missing, or
    another node has it. The message is that of the pod's event. The kubelet keeps trying."""
    INIT_CONTAINER_SLOW = "InitContainerSlow"
    """An init container has run for five minutes, and the other containers of its pod wait for it. The message names
    it. It may belong to the template, or to a webhook that adds containers."""
    WORKERS_RUNNING = "WorkersRunning"
    """All workers run."""
    WORKERS_CREATED = "WorkersCreated"
    """All pods of an attempt have been created."""

    WORKER_FAILED = "WorkerFailed"
    """A worker exited with an error, or was evicted because it filled its disk. The group restarts and the failure
    counts towards `maxRestarts`."""
    WORKER_DISRUPTED = "WorkerDisrupted"
    """A worker was deleted, evicted, preempted or lost with its node. The group restarts. This is not counted
    unless a rule says otherwise."""
    ADMISSION_REJECTED = "AdmissionRejected"
    """A node rejected a pod that was bound to it, for example because a device is missing. The group restarts.
    This is not counted unless a rule says otherwise."""
    RESIZED = "Resized"
    """`replicas` was changed, or an elastic group gets more workers. The group restarts with the new number of
    workers. This is not counted."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """The cluster had no capacity for some workers within `elastic.shrinkAfterSeconds`. The group continues
    without them and grows again when there is capacity. This is not counted."""
    SIZE_NOT_ALLOWED = "SizeNotAllowed"
    """`elastic` or `parallelism` does not allow the number in `replicas`. The group gets the next smaller allowed
    size. Or the group's current size is not allowed any more, and stays until the group can grow."""
    SIZE_ALLOWED = "SizeAllowed"
    """The group has the size that `replicas` requests, or will get it."""
    WORKERS_JOINING = "WorkersJoining"
    """`replicas` was raised, or the cluster may have capacity again for missing workers. The new workers start
    while the others train. Then the group restarts with all of them."""
    NODES_RELEASED = "NodesReleased"
    """Workers are unschedulable, and the job does not avoid some nodes any more. The group restarts. This is not
    counted."""
    PARTIALLY_SCHEDULED = "PartiallyScheduled"
    """Some members had nodes for `scheduling.partialTimeoutSeconds`, and the cluster had none for the others. All pods are
    deleted, so that other jobs can use the nodes. They are created again after a delay, which grows. This is not counted."""
    GANG_UNAVAILABLE = "GangUnavailable"
    """`scheduling.gang` names a scheduler that the operator may not use, or whose PodGroups the cluster does not have. No
    worker is started."""
    POD_GROUP_REJECTED = "PodGroupRejected"
    """The API server rejects the PodGroup through which a gang scheduler places the group (`scheduling.gang`). No worker is
    created. The operator tries again."""
    USER_SCHEDULING_PRESERVED = "UserSchedulingPreserved"
    """The template has a scheduler, a group, an affinity or a priority of its own beside `scheduling`. The operator keeps it.
    The group may not be placed as `scheduling` asks."""
    TEMPLATE_CHANGED = "TemplateChanged"
    """The job was suspended, changed and resumed before the operator saw it: pods of the group have an earlier
    template. The group restarts with new pods. This is not counted."""
    ATTEMPT_ADOPTED = "AttemptAdopted"
    """A pod belongs to a later attempt than the status, for example after a restore from a backup. Or the agents
    of all workers report a later attempt. The job continues with that attempt."""
    COORDINATED_STOP = "CoordinatedStop"
    """All ranks stop after the same step, with a checkpoint. A worker is being disrupted, the job is suspended, or
    the group is resized."""
    STALE_ATTEMPT = "StaleAttempt"
    """The pod belongs to an earlier attempt."""
    FORCED_DELETION = "ForcedDeletion"
    """The job does not use the pod any more, and its node is not reachable. The pod is deleted by force
    (`recovery.forceDeleteAfterSeconds`)."""

    NO_PYTHON = "NoPython"
    """The image has no Python 3.9 or newer for `trainyard-agent`. The group restarts without the agent. This is
    not counted. Failures are still recovered from."""
    NO_COMMAND = "NoCommand"
    """The main container has no `command`, and the command of its image is not known. `trainyard-agent` is not
    injected."""
    AGENT_DISABLED = "AgentDisabled"
    """`recovery.agent` is none, or the operator is installed without an agent."""
    AGENT_INJECTED = "AgentInjected"
    """`trainyard-agent` runs the command of each worker."""

    STRAGGLERS_DETECTED = "StragglersDetected"
    """For a minute, the step time of a rank was at least 1.5 times the median of the group. This does not restart
    anything."""
    NO_STRAGGLERS = "NoStragglers"
    """No rank is slower than the others any more."""

    PROGRESS_NOT_REPORTED = "ProgressNotReported"
    """The program has reported no progress for five minutes. So a hang is noticed only where no rank does anything."""
    PROGRESS_REPORTED = "ProgressReported"
    """The program reports progress: the agents detect hangs, and the group restarts after one."""
    RANKS_IDLE = "RanksIdle"
    """No rank has used its CPU, its disk or the network for ten minutes, or for `recovery.hangTimeoutSeconds`. They may wait
    for each other. This does not restart anything. The agents write the stacks of all ranks into the logs of the pods."""
    RANKS_ACTIVE = "RanksActive"
    """The ranks work again."""
    STACKS_REQUESTED = "StacksRequested"
    """The annotation `trainyard.dev/dump-stacks` has a new value. The agents write the stacks of all ranks into the logs
    of the pods, and the ranks continue."""
    RANK_FAILURE_HIDDEN = "RankFailureHidden"
    """A rank failed, but the command of its container exited with code 0, as that of a pipeline or of `train; echo` does. The
    worker counts as succeeded. With `recovery.hiddenFailures: Fail`, such a worker fails."""
    GROUPS_SPLIT = "GroupsSplit"
    """The ranks formed several process groups in place of one: each trains by itself. Or each worker started one process
    in place of several. The message has the expected and the formed world size, and what to change in the command."""
    GROUP_FORMED = "GroupFormed"
    """The ranks formed one process group of the expected size."""
    TCP_IN_USE = "TcpInUse"
    """The workers request devices for RDMA or have a network profile, but NCCL communicates by TCP sockets, at a fraction of the
    speed. This ends nothing."""
    RDMA_IN_USE = "RdmaInUse"
    """NCCL uses RDMA or a plugin between workers."""

    SUSPENDED = "Suspended"
    """`lifecycle.suspend` is set: the job has no pods."""
    RESUMED = "Resumed"
    """`lifecycle.suspend` was set to false."""

    WAITING_FOR_QUOTA = "WaitingForQuota"
    """The job waits in its queue (`scheduling.queue`) and has no pods. The message is Kueue's."""
    ADMISSION_CHECKS_PENDING = "AdmissionChecksPending"
    """The queue has reserved quota for the job, and waits for its admission checks. The message names them."""
    ADMITTED = "Admitted"
    """The queue has admitted the job: there is quota for its pods, which are created now."""
    EVICTED = "Evicted"
    """The queue has taken its quota back, for example for a job of higher priority. All ranks stop with a checkpoint, and
    the job waits in the queue again. This is not counted."""
    QUEUE_UNAVAILABLE = "QueueUnavailable"
    """The job has a queue that is none of Volcano, and the operator was installed without Kueue, or cannot read Kueue's
    Workloads. It does not run without quota."""
    QUEUE_DEACTIVATED = "QueueDeactivated"
    """The Workload of the job is not active: Kueue or an administrator has set its `spec.active` to false. So the queue
    never admits the job."""
    WORKLOAD_REPLACED = "WorkloadReplaced"
    """The Workload of the job was deleted, was finished by another controller, or does not fit the job any more. The job
    waits in its queue again, with a checkpoint."""
    ADMISSION_UNUSABLE = "AdmissionUnusable"
    """No pod can be created from what the queue has decided: a ResourceFlavor is missing, or labels of nodes contradict
    those of the template."""
    PRIORITY_CLASS_MISSING = "PriorityClassMissing"
    """The priority class that the job names does not exist. The job enters its queue once it does."""
    QUEUE_REMOVED = "QueueRemoved"
    """The job has no queue of Kueue any more, and starts without its quota."""

    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota of the namespace does not allow the pods. The operator tries again."""
    PODS_FORBIDDEN = "PodsForbidden"
    """The API server rejects the pods because of pod security or a policy. The operator tries again."""
    WEBHOOK_FAILED = "WebhookFailed"
    """An admission webhook on pods does not answer, and its `failurePolicy` is Fail. The message
    names it. The operator tries again."""
    NETWORK_POLICY_REJECTED = "NetworkPolicyRejected"
    """The API server rejects the NetworkPolicy for the workers (`networkPolicy.jobs` of the chart). No policy is
    created. The operator tries again."""
    COMPUTE_DOMAIN_REJECTED = "ComputeDomainRejected"
    """The API server rejects the ComputeDomain for the workers (`scheduling.computeDomain`), or does not know the kind. No worker
    is created. The operator tries again."""
    PERMISSION_DENIED = "PermissionDenied"
    """The operator's service account lacks the permission that the message names. The operator tries again until
    it is granted."""
    NAME_CONFLICT = "NameConflict"
    """A pod or Service with a name that the job needs belongs to another owner."""
    INVALID_TEMPLATE = "InvalidTemplate"
    """The API server rejects `spec.template` as invalid. No pod can be created from it."""
    INVALID_SPEC = "InvalidSpec"
    """The operator cannot read the spec, and ignores the job until it changes. Or `parallelism` does not fit the
    number of ranks. No worker is started then, but a running group continues with its size. As an event:
    parallel sizes, numbers or hosts in the command do not fit the job. The workers start."""
    USER_ENVIRONMENT_PRESERVED = "UserEnvironmentPreserved"
    """The template sets an environment variable that describes ranks or the master, or one of another framework.
    The operator keeps it. It may not match the real values."""
    NETWORK_PROFILE_APPLIED = "NetworkProfileApplied"
    """What `network.profile` sets in the workers. With auto: what of the template proved the network, or that nothing did."""
    NETWORK_PROFILE_CONFLICT = "NetworkProfileConflict"
    """The template has other values than the profile, and keeps them. Or a part of the profile cannot be set. The workers start."""
    NETWORK_PROFILE_UNUSABLE = "NetworkProfileUnusable"
    """The operator does not know the profile in `network.profile`, or a sidecar of it has no image. Or a profile of the chart makes
    the pod invalid. No worker is created. The operator tries again."""
    RANK_ORDER_IGNORED = "RankOrderIgnored"
    """`scheduling.rankOrder` is placement, but ranks follow the index of workers. The message has the cause."""
    STANDARD_INPUT_UNUSED = "StandardInputUnused"
    """The main container has `stdin` or `tty`, and each worker starts several processes. None of them reads the
    input."""

    ACCELERATORS_UNKNOWN = "AcceleratorsUnknown"
    """`processesPerReplica` is auto, and the operator does not know how many accelerators a resource or a resource
    claim means. Each worker starts the number of processes in the message."""
    ACCELERATORS_COUNTED = "AcceleratorsCounted"
    """The number of processes is known: `processesPerReplica` is set, or the operator knows the accelerators."""

    CLUSTER_DNS_UNUSED = "ClusterDNSUnused"
    """`dnsPolicy` of the template does not use the cluster's DNS. So workers cannot find their master by its name."""

    WORKERS_SUCCEEDED = "WorkersSucceeded"
    """The workers that decide about success (`lifecycle.success`) exited with code 0."""
    RESTARTS_EXHAUSTED = "RestartsExhausted"
    """More failures than `recovery.maxRestarts` allows."""
    DISRUPTIONS_EXHAUSTED = "DisruptionsExhausted"
    """More disruptions than `recovery.maxDisruptions` allows."""
    NO_PROGRESS = "NoProgress"
    """Consecutive attempts failed at the same step, as many as `recovery.noProgressLimit` allows."""
    NON_RETRYABLE = "NonRetryable"
    """A worker exited in a way that no restart can fix, because of `recovery.rules` or its exit code. Or its container
    cannot be started. Or it ran out of memory twice in a row without progress. Or the same exception at the same place
    ended each attempt before its first step, in a new pod too. The message names the fix."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """The job was active for longer than `lifecycle.activeDeadlineSeconds`."""
    STARTUP_DEADLINE_EXCEEDED = "StartupDeadlineExceeded"
    """An attempt took longer than `lifecycle.startupDeadlineSeconds` until all its workers ran."""
    JOB_FINISHED = "JobFinished"
    """The job has finished. `lifecycle.cleanPods` says which pods are deleted."""
    TTL_EXPIRED = "TTLExpired"
    """`lifecycle.ttlSecondsAfterFinished` has passed."""
