"""Read from the template of a job what holds for all of its pods. Pure.

- A hash of what must be the same in all pods of a group.
- Whether a pod keeps values of one attempt or size for its whole life. They would be wrong in an attempt that keeps the pod.
- Whether workers can find each other by name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from trainyard.api.constants import ANNOTATION_WORKERS, GROUP, LABEL_ATTEMPT
from trainyard.api.recovery import Agent
from trainyard.api.spec import TrainingJobSpec

HASH_CHARACTERS = 16
USES_CLUSTER_DNS = frozenset({None, "ClusterFirst", "ClusterFirstWithHostNet"})
OF_ATTEMPT = (
    r"TRAINYARD_ATTEMPT|TF_CONFIG|TRAINYARD_PREVIOUS_WORLD_SIZE|(?:PET_)?MASTER_(?:ADDR|PORT)|PET_RDZV_(?:ENDPOINT|ID)"
)
"""Variables that have another value in each attempt."""
OF_SIZE = r"TRAINYARD_REPLICAS|WORLD_SIZE|PET_NNODES|PET_LOCAL_ADDR"
"""Variables that have another value in a group of another size."""
ALL_LABELS, ALL_ANNOTATIONS = "metadata.labels", "metadata.annotations"
"""Field paths of the downward API's volumes: one file with all of them."""
FIELDS_OF_ATTEMPT = rf"{re.escape(LABEL_ATTEMPT)}|\A{re.escape(ALL_LABELS)}\Z"
FIELDS_OF_SIZE = rf"{re.escape(ANNOTATION_WORKERS)}|\A{re.escape(ALL_ANNOTATIONS)}\Z"
"""The label and the annotation of the same meaning, which the downward API can read. A pod keeps both for its whole life."""
NEW_IN_EACH_ATTEMPT = frozenset({"command", "args", "env"})
"""Fields of the main container whose variables the agent renews. What the kubelet has expanded in them stays."""
IN_ALL_NAMES = ("TRAINYARD_", "TF_CONFIG", "MASTER_", "PET_", "WORLD_SIZE", f"{GROUP}/", ALL_LABELS, ALL_ANNOTATIONS)
"""Each of the names has one of these."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """How a template refers to values."""

    expanded: re.Pattern[str]
    """As the kubelet expands them."""
    mentioned: re.Pattern[str]
    """As programs name them, also."""


def patterns_of(variables: str, fields: str) -> Patterns:
    """Return the patterns of references to these variables and fields. Both are regular expressions."""
    # `$$` is the kubelet's escape of `$`.
    expanded = re.compile(rf"(?<!\$)(?:\$\$)*\$\((?:{variables})\)|{fields}")
    return Patterns(expanded, re.compile(rf"\b(?:{variables})\b|{fields}"))


ATTEMPT = patterns_of(OF_ATTEMPT, FIELDS_OF_ATTEMPT)
ATTEMPT_OR_SIZE = patterns_of(f"{OF_ATTEMPT}|{OF_SIZE}", f"{FIELDS_OF_ATTEMPT}|{FIELDS_OF_SIZE}")


def has_fixed_values(spec: TrainingJobSpec, patterns: Patterns = ATTEMPT) -> bool:
    """Return whether a pod holds values of the attempt for which it was created, or what else matches `patterns`.

    The agent gives new variables to the main container's program in each attempt. All else is made once for each pod. The
    kubelet expands `$(NAME)` in any field, also in `subPathExpr`. Other containers, hooks and probes keep their first variables.
    """
    # Each reconcile asks, and few templates name any of the variables.
    text = json.dumps(spec.template)
    return any(part in text for part in IN_ALL_NAMES) and fixes_a_value(spec, patterns)


def fixes_a_value(spec: TrainingJobSpec, patterns: Patterns) -> bool:
    """Return whether a pod holds values that match these patterns, and that the agent cannot renew."""
    main: Mapping[str, Any] = spec.template["spec"]["containers"][0]
    renewed = [value for field, value in main.items() if field in NEW_IN_EACH_ATTEMPT]
    fixed = {field: value for field, value in main.items() if field not in NEW_IN_EACH_ATTEMPT}
    others = {**spec.template["spec"], "containers": [fixed, *spec.template["spec"]["containers"][1:]]}
    once = [spec.template.get("metadata"), others]
    return any(map(patterns.expanded.search, _texts(renewed))) or any(map(patterns.mentioned.search, _texts(once)))


def _texts(node: object) -> Iterator[str]:
    """Yield all texts in this JSON but names, which hold no variables: those of containers, volumes and variables themselves."""
    match node:
        case str():
            yield node
        case dict():
            for key, value in node.items():
                if key != "name":
                    yield from _texts(value)
        case list():
            for value in node:
                yield from _texts(value)
        case _:
            pass


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
        **({"roles": [role.dump() for role in spec.roles]} if spec.roles else {}),
        **({"network": spec.network.profile} if spec.network.profile else {}),
        **({"scheduling": of_pods} if (of_pods := spec.scheduling.of_pods) else {}),
        **({"computeDomain": domain.dump()} if (domain := spec.scheduling.compute_domain) else {}),
        # With the agent, elastic may change while the group runs.
        "elastic": spec.elastic.model_dump(mode="json", exclude_defaults=True)
        if spec.elastic and spec.recovery.agent is Agent.NONE
        else None,
    }
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:HASH_CHARACTERS]


def dns_problem(spec: TrainingJobSpec, namespace: str, workers: int) -> str:
    """Return why the workers cannot find each other by name, and the fix; empty where they can, or where one is alone.

    The name of the master lacks the domain of the namespace: a pod with its own search domains finds it where they include
    this. `options: ndots` changes nothing: glibc tries the search domains also after a name that has enough dots.
    """
    pod: Mapping[str, Any] = spec.template["spec"]
    policy, host_network = pod.get("dnsPolicy"), bool(pod.get("hostNetwork"))
    # With hostNetwork, the kubelet takes ClusterFirst for Default.
    unused = policy not in USES_CLUSTER_DNS or (policy == "ClusterFirst" and host_network)
    searches = (pod.get("dnsConfig") or {}).get("searches") or ()
    if workers < 2 or not unused or any(f"{search}.".startswith(f"{namespace}.svc.") for search in searches):
        return ""
    which = f"dnsPolicy {policy}{' with hostNetwork' if host_network else ''}"
    if policy == "None" or searches:
        return (
            f"{which} without {namespace}.svc.cluster.local (or the cluster's own domain) in dnsConfig.searches,"
            " so that workers cannot find their master: add it, or leave dnsPolicy out"
        )
    return f"{which} does not use the cluster's DNS, so that workers cannot find their master: leave dnsPolicy out"
