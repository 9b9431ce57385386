"""Names that users and other programs see: the group, the labels, the annotations."""

from typing import Final

GROUP: Final = "trainyard.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "TrainingJob"
PLURAL: Final = "trainingjobs"

CONTROLLER_NAME: Final = "trainyard.dev/operator"
"""The value of `spec.managedBy` that means this operator; it ignores jobs with any other value."""

LABEL_JOB_NAME: Final = "trainyard.dev/job-name"
LABEL_JOB_UID: Final = "trainyard.dev/job-uid"
LABEL_ROLE: Final = "trainyard.dev/role"
LABEL_INDEX: Final = "trainyard.dev/index"
LABEL_ATTEMPT: Final = "trainyard.dev/attempt"
LABEL_GROUP: Final = "trainyard.dev/group"
"""On each pod of a job with `scheduling.topology`: the attempt for which its group was created. Replaced pods have that of the others."""
ANNOTATION_WORKERS: Final = "trainyard.dev/workers"
"""On each pod: the number of workers of the group it was made for, so that a changed `replicas` is seen as a resize."""
ANNOTATION_MAIN_CONTAINER: Final = "trainyard.dev/main-container"
"""On each pod: the name of the main container, wherever admission puts its own containers."""
ANNOTATION_GENERATION: Final = "trainyard.dev/generation"
"""On each pod: the generation of the job from which it was created."""
ANNOTATION_TEMPLATE_HASH: Final = "trainyard.dev/template-hash"
"""On each pod: the hash of the template and of what else all pods of a group share. Pods of earlier releases have none."""
ANNOTATION_NETWORK: Final = "trainyard.dev/network-profile"
"""On each pod that a network profile has changed: the profile's name, and a digest of its data."""
ANNOTATION_RANK_ORDER: Final = "trainyard.dev/rank-order"
"""On each pod whose ranks wait for the order of workers: `placement`. Other pods have ranks by their index."""
ANNOTATION_DUMP_STACKS: Final = "trainyard.dev/dump-stacks"
"""On a TrainingJob: each new value asks all agents once to write the stacks of their ranks into their pods' logs."""
MAX_STACK_REQUEST: Final = 128
"""Characters of that value that count."""
ENV_JOB_UID: Final = "TRAINYARD_JOB_UID"
"""The variable of the job's UID, which each container of the template has and no container of others."""

ROLE_WORKER: Final = "worker"
AUDIENCE: Final = "trainyard"
"""The audience of the tokens with which workers authenticate. The API server accepts none of them."""
AGENT: Final = "trainyard-agent"
"""The agent's command, and the name of the init container and the volume that inject it into a worker."""
MAX_REPLICAS: Final = 10_000
MAX_JOB_NAME: Final = 63 - len(f"-{ROLE_WORKER}-{MAX_REPLICAS - 1}")
"""The longest name derived from a job's is its last worker's host name, and a host name holds 63 characters."""
