"""Model values of Kubernetes' own types by field, so that the schema refuses a field that Kubernetes does not have.

The templates check rules between fields, for example that one of two is set.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dev.codegen.chart.words import (
    OPTIONAL,
    OptionalQualifiedName,
    Quantity,
    Subdomain,
    Text,
    These,
    Values,
)
from trainyard.controller.bootstrap.peers import LabelValue, QualifiedName, Selector

Count = Annotated[int, Field(ge=1, le=2147483647)]
Weight = Annotated[int, Field(ge=1, le=100)]
Key = Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
"""A key of a ConfigMap or a Secret."""
ResourceName = Annotated[str, Field(pattern=r"^(cpu|memory|ephemeral-storage)$")]
"""The operator does not use other resources, which have their own rules."""
Quantities = Annotated[dict[ResourceName, Quantity | Annotated[float, Field(ge=0)]], These]


class Resources(Values):
    """Resources of a container."""

    requests: Quantities = OPTIONAL
    limits: Quantities = OPTIONAL


class KeyOf(Values):
    """A key of a ConfigMap or a Secret."""

    name: Subdomain
    key: Key
    optional: bool = OPTIONAL


class FieldOf(Values):
    """A field of the pod."""

    api_version: Literal["v1"] = OPTIONAL
    field_path: Text


class ResourceOf(Values):
    """A resource of a container."""

    container_name: str = OPTIONAL
    resource: Text
    divisor: Quantity = OPTIONAL


class Source(Values):
    """The source of a variable's value: exactly one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    field_ref: FieldOf = OPTIONAL
    resource_field_ref: ResourceOf = OPTIONAL
    config_map_key_ref: KeyOf = OPTIONAL
    secret_key_ref: KeyOf = OPTIONAL


class Variable(Values):
    """A variable of a container's `env`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """The template refuses the names that the chart sets itself."""
    value: str = OPTIONAL
    value_from: Source = OPTIONAL


class Toleration(Values):
    """A toleration of a taint."""

    key: OptionalQualifiedName = OPTIONAL
    operator: Literal["Equal", "Exists"] = OPTIONAL
    """API servers refuse `Gt` and `Lt` unless their feature gate is on; it is off by default up to 1.36."""
    value: LabelValue = OPTIONAL
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = OPTIONAL
    toleration_seconds: int = OPTIONAL


class NodeExpression(Values):
    """A requirement on a label or a field of a node."""

    key: Text
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] = OPTIONAL


class NodeTerm(Values):
    """Requirements on a node."""

    match_expressions: list[NodeExpression] = OPTIONAL
    match_fields: list[NodeExpression] = OPTIONAL


class NodeTerms(Values):
    """Terms of which a node must match one."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1)]


class PreferredNode(Values):
    """A preferred term and its weight."""

    weight: Weight
    preference: NodeTerm


class NodeAffinity(Values):
    """Affinity to nodes."""

    required_during_scheduling_ignored_during_execution: NodeTerms = OPTIONAL
    preferred_during_scheduling_ignored_during_execution: list[PreferredNode] = OPTIONAL


class PodTerm(Values):
    """The selected pods, and the topology domain that they share."""

    topology_key: QualifiedName
    label_selector: Selector = OPTIONAL
    namespaces: list[str] = OPTIONAL
    namespace_selector: Selector = OPTIONAL
    match_label_keys: list[str] = OPTIONAL
    mismatch_label_keys: list[str] = OPTIONAL


class PreferredPod(Values):
    """A preferred term and its weight."""

    weight: Weight
    pod_affinity_term: PodTerm


class PodAffinity(Values):
    """Affinity to pods."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] = OPTIONAL
    preferred_during_scheduling_ignored_during_execution: list[PreferredPod] = OPTIONAL


class Affinity(Values):
    """Affinity of pods to nodes and to other pods."""

    node_affinity: NodeAffinity = OPTIONAL
    pod_affinity: PodAffinity = OPTIONAL
    pod_anti_affinity: PodAffinity = OPTIONAL


class Spread(Values):
    """A topology spread constraint. Without a selector the template uses the operator's own."""

    max_skew: Count
    topology_key: QualifiedName
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: Selector = OPTIONAL
    match_label_keys: list[str] = OPTIONAL
    min_domains: Count = OPTIONAL
    node_affinity_policy: Literal["Honor", "Ignore"] = OPTIONAL
    node_taints_policy: Literal["Honor", "Ignore"] = OPTIONAL
