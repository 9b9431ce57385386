"""Hash the part of a spec that must be the same in all pods of a group. Pure."""

import json
from hashlib import sha256

from trainyard.api.recovery import Agent
from trainyard.api.spec import TrainingJobSpec

HASH_CHARACTERS = 16


def template_hash(spec: TrainingJobSpec) -> str:
    """Return the hash of all fields that can be changed only while the job is suspended: template, number of processes and more.

    It is of the spec as stored, not of the pods: these differ between releases of the operator, and after admission. A field
    that a later release adds with a default does not change it.
    """
    fields = {
        "template": spec.template,
        "processesPerReplica": spec.processes_per_replica,
        "parallelism": spec.parallelism and spec.parallelism.model_dump(mode="json", exclude_defaults=True),
        "agent": spec.recovery.agent,
        # With the agent, elastic may change while the group runs.
        "elastic": spec.elastic.model_dump(mode="json", exclude_defaults=True)
        if spec.elastic and spec.recovery.agent is Agent.NONE
        else None,
    }
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:HASH_CHARACTERS]
