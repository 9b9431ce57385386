"""`spec.roles`: members of a group beside its workers, and one table of what each role means to its framework.

Members have one space of indexes: workers from 0, and the members of each role from a number of its own. A pod's name has its role and its
number within the role.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from trainyard.api.base import Model, rule
from trainyard.api.constants import MAX_REPLICAS, ROLE_WORKER
from trainyard.api.pod_template import pod_template_schema

MAX_ROLES = 8
MAX_ROLE_REPLICAS = 1000
"""Members of a role."""
FIRST_ROLE_INDEX = MAX_REPLICAS
MAX_MEMBER_INDEX = FIRST_ROLE_INDEX + 32 * MAX_ROLE_REPLICAS
"""With room for more roles. Workers and members of roles have lower indexes."""


class RoleName(StrEnum):
    """The roles of all frameworks. The order is that of their indexes, which pods in a cluster have: new roles come last."""

    CHIEF = "chief"
    PS = "ps"
    EVALUATOR = "evaluator"
    HEAD = "head"
    SERVER = "server"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class RoleRule:
    """What the end of a member of a role means."""

    decides: bool = False
    """Whether the job succeeds with it: once all members that decide have exited with code 0."""
    alone: bool = False
    """Whether a failure restarts this member alone, while all others go on. Otherwise it restarts the group."""
    ends: bool = True
    """Whether it ends by itself. The operator stops one that does not, once the members that decide have succeeded."""


@dataclass(frozen=True, slots=True)
class FrameworkRoles:
    """The roles of a framework."""

    worker: RoleRule = RoleRule(decides=True)
    """The rule of the workers."""
    roles: Mapping[RoleName, RoleRule] = field(default_factory=dict)
    required: tuple[RoleName, ...] = ()
    """The roles without which no group can form."""
    single: tuple[RoleName, ...] = ()
    """Those of them of which there must not be two. Other frameworks may have several."""
    variant: tuple[RoleName, "FrameworkRoles"] | None = None
    """A role that changes what all others mean, and the rules for a job that has it."""

    @property
    def names(self) -> list[RoleName]:
        """The roles that the framework has."""
        return [
            *self.roles,
            *(name for name in (self.variant[1].roles if self.variant else ()) if name not in self.roles),
        ]


_GOES_ON = RoleRule(alone=True, ends=False)
ROLES: Mapping[str, FrameworkRoles] = MappingProxyType(
    {
        "tensorflow": FrameworkRoles(
            # MultiWorkerMirrored: all train, and end together.
            RoleRule(decides=True),
            {RoleName.CHIEF: RoleRule(decides=True), RoleName.EVALUATOR: _GOES_ON},
            variant=(
                RoleName.PS,
                # The chief runs the loop, and its variables live on the parameter servers. Servers and workers never end.
                FrameworkRoles(
                    RoleRule(alone=True, ends=False),
                    {
                        RoleName.CHIEF: RoleRule(decides=True),
                        RoleName.PS: RoleRule(ends=False),
                        RoleName.EVALUATOR: _GOES_ON,
                    },
                    required=(RoleName.CHIEF,),
                ),
            ),
        ),
        # The head runs the driver, which brings back what it loses with a worker. Ray's processes on workers never end.
        "ray": FrameworkRoles(
            RoleRule(alone=True, ends=False), {RoleName.HEAD: RoleRule(decides=True)}, required=(RoleName.HEAD,)
        ),
        # The servers hold the parameters, and the scheduler the list of all members: without one of them the group cannot end. Both
        # end once all workers have parted, or not at all.
        "dmlc": FrameworkRoles(
            RoleRule(decides=True),
            {RoleName.SCHEDULER: RoleRule(ends=False), RoleName.SERVER: RoleRule(ends=False)},
            required=(RoleName.SCHEDULER, RoleName.SERVER),
        ),
        # The run of the server decides. Clients are the workers: they rejoin, and their SuperNodes never end.
        "flower": FrameworkRoles(
            RoleRule(alone=True, ends=False),
            {RoleName.SERVER: RoleRule(decides=True)},
            required=(RoleName.SERVER,),
            single=(RoleName.SERVER,),
        ),
    }
)
"""By framework. One that is missing has workers only, which all decide."""
SINGLE = (RoleName.CHIEF, RoleName.EVALUATOR, RoleName.HEAD, RoleName.SCHEDULER)
"""Roles of one member at most."""


def member_index(role: str, number: int) -> int:
    """Return the index of the member with this number within its role."""
    if role == ROLE_WORKER:
        return number
    return FIRST_ROLE_INDEX + list(RoleName).index(RoleName(role)) * MAX_ROLE_REPLICAS + number


def role_and_number(index: int) -> tuple[str, int]:
    """Return the role of the member with this index, and its number within the role."""
    if index < FIRST_ROLE_INDEX:
        return ROLE_WORKER, index
    position, number = divmod(index - FIRST_ROLE_INDEX, MAX_ROLE_REPLICAS)
    return list(RoleName)[position], number


def is_worker(index: int) -> bool:
    """Return whether the member with this index is a worker, and of no other role."""
    return index < FIRST_ROLE_INDEX


def _of_pod(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = pod_template_schema()["properties"]["spec"]["properties"][name]
    return schema


def _of_container(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = _of_pod("containers")["items"]["properties"][name]
    return schema


OPAQUE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""The API server checks such a field when the pods are created. Its schema would make the CRD too large for `kubectl apply`."""
VOLUMES = {"type": "array", "items": {**OPAQUE, "required": ["name"], "properties": {"name": {"type": "string"}}}}


class Role(Model):
    """Members of the group beside its workers. What is not set here is as in `template`, of which the main container changes."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"!(self.name in {[str(name) for name in SINGLE]}) || self.replicas == 1",
                    "a group has one member of this role; set replicas to 1",
                    fieldPath=".replicas",
                ),
            ],
        },
    )

    name: RoleName
    """The role."""
    replicas: int = Field(default=1, ge=1, le=MAX_ROLE_REPLICAS)
    """The number of its members."""
    image: str | None = Field(default=None, min_length=1)
    """The image of the main container."""
    command: list[str] | None = None
    """The command of the main container. If it is set, `args` of the template do not apply."""
    args: list[str] | None = None
    """The arguments of the main container."""
    env: Annotated[list[dict[str, Any]] | None, WithJsonSchema(_of_container("env"))] = None
    """Variables of the main container, beside those of the template. A variable of the same name replaces that one."""
    resources: Annotated[dict[str, Any] | None, WithJsonSchema(_of_container("resources"))] = None
    """The resources of the main container."""
    volume_mounts: Annotated[list[dict[str, Any]] | None, WithJsonSchema(_of_container("volumeMounts"))] = None
    """Mounts of the main container, beside those of the template. A mount at the same path replaces that one."""
    volumes: Annotated[list[dict[str, Any]] | None, WithJsonSchema(VOLUMES)] = None
    """Volumes of the pod, beside those of the template. A volume of the same name replaces that one."""
    node_selector: Annotated[dict[str, str] | None, WithJsonSchema(_of_pod("nodeSelector"))] = None
    """The node selector of the pod."""
    tolerations: Annotated[list[dict[str, Any]] | None, WithJsonSchema(_of_pod("tolerations"))] = None
    """The tolerations of the pod."""
    affinity: Annotated[dict[str, Any] | None, WithJsonSchema(OPAQUE)] = None
    """The affinity of the pod."""
    priority_class_name: str | None = None
    """The priority class of the pod."""


def _choice(values: Mapping[str, str], otherwise: str) -> str:
    """Return the CEL expression of a value by framework."""
    return "".join(f"self.framework == '{name}' ? {value} : " for name, value in values.items()) + otherwise


def role_rules() -> list[dict[str, Any]]:
    """Return the rules of the CRD for `spec.roles`: which roles a framework has, which it needs, and when they may change."""
    named = {framework: [str(name) for name in roles.names] for framework, roles in ROLES.items() if roles.names}
    allowed = _choice({framework: str(names) for framework, names in named.items()}, "[]")
    listed = _choice({framework: f"'the roles {', '.join(names)}'" for framework, names in named.items()}, "'no roles'")
    rules = [
        rule(
            f"!has(self.roles) || self.roles.all(each, each.name in ({allowed}))",
            "the framework does not have each of these roles; remove or rename them",
            messageExpression=f"'framework ' + self.framework + ' has ' + ({listed}) + '; remove or rename the others'",
            fieldPath=".roles",
        )
    ]
    for framework, roles in ROLES.items():
        variant = roles.variant
        where = f"self.framework != '{framework}'"
        if len(roles.required) > 1:
            rules.append(_all_required(where, roles.required))
        else:
            rules += [_required(where, name, is_single=name in roles.single) for name in roles.required]
        if variant is not None:
            without = f"{where} || !has(self.roles) || !self.roles.exists(each, each.name == '{variant[0]}')"
            rules += [_required(without, name, f" if it has the role {variant[0]}") for name in variant[1].required]
    return [
        *rules,
        rule(
            "(has(self.roles) == has(oldSelf.roles) && (!has(self.roles) || self.roles == oldSelf.roles))"
            " || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
            "roles can be changed only while the job is suspended; set lifecycle.suspend to true first",
            fieldPath=".roles",
            reason="FieldValueForbidden",
        ),
    ]


def _all_required(unless: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the rule of a framework that needs each role it has: no name is there twice, and another rule refuses other names."""
    return rule(
        f"{unless} || (has(self.roles) && self.roles.size() == {len(names)})",
        f"the framework needs the roles {' and '.join(names)}; add them to roles",
        fieldPath=".roles",
    )


def _required(unless: str, name: str, where: str = "", *, is_single: bool = False) -> dict[str, Any]:
    number, counted = (" && each.replicas == 1", " with replicas 1") if is_single else ("", "")
    return rule(
        f"{unless} || (has(self.roles) && self.roles.exists(each, each.name == '{name}'{number}))",
        f"the framework needs the role {name}{where}{counted}; add it to roles",
        fieldPath=".roles",
    )
