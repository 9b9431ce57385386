"""What a user or an administrator does about each reason; `docs/reference/reasons.md` is generated from these. Pure data."""

from collections.abc import Mapping

from trainyard.api.reasons import Reason

NOTHING = "Nothing to do."
"""The reason reports what a healthy job does, or what the operator has repaired."""
TRIES_AGAIN = "Nothing to do, unless it repeats."

REMEDIES: Mapping[Reason, str] = {
    Reason.WORKERS_PENDING: "Wait. After minutes, read the events of the pods: `kubectl describe pod POD`.",
    Reason.UNSCHEDULABLE: "Request fewer resources, free or add nodes, or correct `nodeSelector` and tolerations.",
    Reason.WORKERS_SCHEDULED: NOTHING,
    Reason.WORKERS_STARTING: "Wait for images and volumes. After minutes, read the events of the pod in the message.",
    Reason.IMAGE_PULL_FAILED: "Correct the image's name, or add its registry's secret to `imagePullSecrets`.",
    Reason.CONTAINER_CREATE_FAILED: "Create the missing object, or correct its name in the template.",
    Reason.VOLUME_MOUNT_FAILED: "Create the object that the message names, or detach the volume from the other node.",
    Reason.INIT_CONTAINER_SLOW: "Read its log: `kubectl logs POD -c CONTAINER`. Wait if it loads data.",
    Reason.WORKERS_RUNNING: NOTHING,
    Reason.WORKERS_CREATED: NOTHING,
    Reason.WORKER_FAILED: "Read `status.lastFailure` and the log of its pod, and fix the program.",
    Reason.WORKER_DISRUPTED: TRIES_AGAIN + " Then look for preemption, drains or lost nodes in the pods' events.",
    Reason.ADMISSION_REJECTED: TRIES_AGAIN + " Then repair or cordon the node: its device plugin lacks devices.",
    Reason.RESIZED: NOTHING,
    Reason.INSUFFICIENT_CAPACITY: "Nothing to do, or add nodes: the group grows again by itself.",
    Reason.SIZE_NOT_ALLOWED: "Set `replicas` to a size that `elastic` and `parallelism` allow; the message names the rule.",
    Reason.SIZE_ALLOWED: NOTHING,
    Reason.WORKERS_JOINING: NOTHING,
    Reason.NODES_RELEASED: "Repair the nodes in `status.suspectNodes`, or cordon them.",
    Reason.TEMPLATE_CHANGED: NOTHING,
    Reason.ATTEMPT_ADOPTED: "Nothing to do. Do not edit `status` by hand.",
    Reason.COORDINATED_STOP: NOTHING,
    Reason.STALE_ATTEMPT: NOTHING,
    Reason.FORCED_DELETION: "Repair the node, or delete it from the cluster.",
    Reason.NO_PYTHON: "Add Python 3.9 or newer and `/bin/sh` to the image, or set `recovery.agent` to none.",
    Reason.NO_COMMAND: "Set `command` of the main container.",
    Reason.AGENT_DISABLED: "Remove `recovery.agent`, or have an administrator enable the agent in the chart.",
    Reason.AGENT_INJECTED: NOTHING,
    Reason.STRAGGLERS_DETECTED: "Compare the nodes in `status.stragglers` with the others: clocks, network, neighbours.",
    Reason.NO_STRAGGLERS: NOTHING,
    Reason.SUSPENDED: "Set `lifecycle.suspend` to false to continue.",
    Reason.RESUMED: NOTHING,
    Reason.QUOTA_EXCEEDED: "Free quota, raise it, or set the requests and limits that it demands.",
    Reason.PODS_FORBIDDEN: "Change the template so that it fits the policy in the message, or have the policy changed.",
    Reason.WEBHOOK_FAILED: "Repair the webhook that the message names, or delete its configuration.",
    Reason.NETWORK_POLICY_REJECTED: "Correct `networkPolicy.jobs` of the chart.",
    Reason.PERMISSION_DENIED: "Install the chart's RBAC again, or grant the permission in the message.",
    Reason.NAME_CONFLICT: "Delete the other object, or create the job with another name.",
    Reason.INVALID_TEMPLATE: "Correct the field in the message, delete the job and create it again.",
    Reason.INVALID_SPEC: "Correct the field in the message with `kubectl edit`.",
    Reason.USER_ENVIRONMENT_PRESERVED: "Remove the variable from the template, unless you set it on purpose.",
    Reason.STANDARD_INPUT_UNUSED: "Set `processesPerReplica` to 1 to debug, or use `kubectl exec -it POD`.",
    Reason.ACCELERATORS_UNKNOWN: "Set `processesPerReplica`, or add the resource to `settings.accelerators` of the chart.",
    Reason.ACCELERATORS_COUNTED: NOTHING,
    Reason.CLUSTER_DNS_UNUSED: "Remove `dnsPolicy`, or add the search domains of Services to `dnsConfig`.",
    Reason.WORKERS_SUCCEEDED: NOTHING,
    Reason.RESTARTS_EXHAUSTED: "Fix the error in `status.lastFailure` or raise `recovery.maxRestarts`; create the job again.",
    Reason.DISRUPTIONS_EXHAUSTED: "Use nodes that are not preempted, or raise `recovery.maxDisruptions`; create the job again.",
    Reason.NO_PROGRESS: "Fix the error at the step in the message; create the job again.",
    Reason.NON_RETRYABLE: "Apply the fix in the message; create the job again.",
    Reason.DEADLINE_EXCEEDED: "Raise `lifecycle.activeDeadlineSeconds`; create the job again.",
    Reason.STARTUP_DEADLINE_EXCEEDED: "Remove what kept the workers waiting, or raise `lifecycle.startupDeadlineSeconds`.",
    Reason.JOB_FINISHED: NOTHING,
    Reason.TTL_EXPIRED: NOTHING + " Raise `lifecycle.ttlSecondsAfterFinished` to keep finished jobs longer.",
}
"""The remedy of each reason, in one or two sentences."""
