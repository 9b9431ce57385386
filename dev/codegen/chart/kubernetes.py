"""Kubernetes' own types that values are of, field by field: one that Kubernetes does not have is refused by its name, and not left to the API server.

What is between fields (one of two, or one that needs another) is said by the templates, in words.
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
"""Of a ConfigMap or a Secret."""
ResourceName = Annotated[str, Field(pattern=r"^(cpu|memory|ephemeral-storage)$")]
"""The operator has no use for others, which have rules of their own."""
Quantities = Annotated[dict[ResourceName, Quantity | Annotated[float, Field(ge=0)]], These]


class Resources(Values):
    """Of a container."""

    requests: Quantities = OPTIONAL
    limits: Quantities = OPTIONAL


class KeyOf(Values):
    """Of a ConfigMap or a Secret."""

    name: Subdomain
    key: Key
    optional: bool = OPTIONAL


class FieldOf(Values):
    """Of the pod."""

    api_version: Literal["v1"] = OPTIONAL
    field_path: Text


class ResourceOf(Values):
    """Of a container."""

    container_name: str = OPTIONAL
    resource: Text
    divisor: Quantity = OPTIONAL


class Source(Values):
    """Where the value of a variable comes from: one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    field_ref: FieldOf = OPTIONAL
    resource_field_ref: ResourceOf = OPTIONAL
    config_map_key_ref: KeyOf = OPTIONAL
    secret_key_ref: KeyOf = OPTIONAL


class Variable(Values):
    """As in a container's `env`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """The template refuses those that the chart sets itself."""
    value: str = OPTIONAL
    value_from: Source = OPTIONAL


class Toleration(Values):
    """Of a taint."""

    key: OptionalQualifiedName = OPTIONAL
    operator: Literal["Equal", "Exists"] = OPTIONAL
    """`Gt` and `Lt` are refused by an API server whose feature gate for them is off, as it is by default up to 1.36."""
    value: LabelValue = OPTIONAL
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = OPTIONAL
    toleration_seconds: int = OPTIONAL


class NodeExpression(Values):
    """What a label, or a field, of a node is to be."""

    key: Text
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] = OPTIONAL


class NodeTerm(Values):
    """Which nodes."""

    match_expressions: list[NodeExpression] = OPTIONAL
    match_fields: list[NodeExpression] = OPTIONAL


class NodeTerms(Values):
    """One of them."""

    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1)]


class PreferredNode(Values):
    """How much rather."""

    weight: Weight
    preference: NodeTerm


class NodeAffinity(Values):
    """To nodes."""

    required_during_scheduling_ignored_during_execution: NodeTerms = OPTIONAL
    preferred_during_scheduling_ignored_during_execution: list[PreferredNode] = OPTIONAL


class PodTerm(Values):
    """Which pods, and what is one place."""

    topology_key: QualifiedName
    label_selector: Selector = OPTIONAL
    namespaces: list[str] = OPTIONAL
    namespace_selector: Selector = OPTIONAL
    match_label_keys: list[str] = OPTIONAL
    mismatch_label_keys: list[str] = OPTIONAL


class PreferredPod(Values):
    """How much rather."""

    weight: Weight
    pod_affinity_term: PodTerm


class PodAffinity(Values):
    """To pods."""

    required_during_scheduling_ignored_during_execution: list[PodTerm] = OPTIONAL
    preferred_during_scheduling_ignored_during_execution: list[PreferredPod] = OPTIONAL


class Affinity(Values):
    """Of pods to nodes, and to each other."""

    node_affinity: NodeAffinity = OPTIONAL
    pod_affinity: PodAffinity = OPTIONAL
    pod_anti_affinity: PodAffinity = OPTIONAL


class Spread(Values):
    """Over zones, say. Without a selector the template takes the operator's own."""

    max_skew: Count
    topology_key: QualifiedName
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: Selector = OPTIONAL
    match_label_keys: list[str] = OPTIONAL
    min_domains: Count = OPTIONAL
    node_affinity_policy: Literal["Honor", "Ignore"] = OPTIONAL
    node_taints_policy: Literal["Honor", "Ignore"] = OPTIONAL
