"""The members of a job's group: its workers, and those of other roles. What their ends mean, and the template of each. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainyard.api.roles import ROLES, FrameworkRoles, Role, RoleRule, is_worker, member_index, role_and_number
from trainyard.api.spec import Success, TrainingJobSpec

WORKERS_ONLY = FrameworkRoles()


def rules(spec: TrainingJobSpec) -> FrameworkRoles:
    """Return the rules of the roles that this job has."""
    found = ROLES.get(spec.framework, WORKERS_ONLY)
    if found.variant and any(role.name is found.variant[0] for role in spec.roles):
        return found.variant[1]
    return found


def rule_of(spec: TrainingJobSpec, index: int) -> RoleRule:
    """Return the rule of the member with this index. A role that the framework does not have fails the group with it."""
    found = rules(spec)
    if is_worker(index):
        return found.worker
    name, _ = role_and_number(index)
    return next((each for role, each in found.roles.items() if role == name), RoleRule())


def role_members(spec: TrainingJobSpec) -> tuple[int, ...]:
    """Return the indexes of the members of all roles but the workers."""
    return tuple(member_index(role.name, number) for role in spec.roles for number in range(role.replicas))


def deciding(spec: TrainingJobSpec, workers: int) -> Sequence[int]:
    """Return the members that must exit with code 0 to complete a job with so many workers: by `lifecycle.success`, or by the roles."""
    match spec.lifecycle.success:
        case Success.ALL_WORKERS:
            return range(workers)
        case Success.WORKER_0:
            return [0]
        case None:
            members = [*range(workers), *role_members(spec)]
            return [index for index in members if rule_of(spec, index).decides]


def member(index: int) -> str:
    """Return the member as people name it: `worker 3`, `ps 1`."""
    name, number = role_and_number(index)
    return f"{name} {number}"


def role_of(spec: TrainingJobSpec, index: int) -> Role | None:
    """Return the role of the member with this index; None for a worker."""
    name, _ = role_and_number(index)
    return next((role for role in spec.roles if role.name == name), None)


def template_of(spec: TrainingJobSpec, role: Role) -> dict[str, Any]:
    """Return the pod template of a role: that of the workers, with what the role sets."""
    pod: Mapping[str, Any] = spec.template["spec"]
    main: Mapping[str, Any] = pod["containers"][0]
    replaced = {"image": role.image, "command": role.command, "args": role.args, "resources": role.resources}
    if role.command is not None and role.args is None:
        main = {name: value for name, value in main.items() if name != "args"}
    merged = {
        "env": _merged(main.get("env"), role.env, "name"),
        "volumeMounts": _merged(main.get("volumeMounts"), role.volume_mounts, "mountPath"),
    }
    of_pod = {
        "nodeSelector": role.node_selector,
        "tolerations": role.tolerations,
        "affinity": role.affinity,
        "priorityClassName": role.priority_class_name,
        "volumes": _merged(pod.get("volumes"), role.volumes, "name"),
    }
    container = {**main, **_set(replaced), **_set(merged)}
    return {**spec.template, "spec": {**pod, **_set(of_pod), "containers": [container, *pod["containers"][1:]]}}


def _set(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _merged(
    own: Iterable[Mapping[str, Any]] | None, more: Iterable[Mapping[str, Any]] | None, key: str
) -> list[Mapping[str, Any]] | None:
    """Return the entries of both lists; one of `more` replaces that with the same key. None where there is none."""
    if more is None:
        return None
    entries = {each[key]: each for each in own or ()}
    return [*(entries | {each[key]: each for each in more}).values()]
