"""Validate the peers that may reach workers, as in a NetworkPolicy's `from`.

What the API server would refuse is refused at start. The administrator would not see it once a job's policy is created.
"""

from ipaddress import ip_network
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, with_config
from typing_extensions import TypedDict

from trainyard.api.names import QUALIFIED

# An unknown field is refused: the selector without it would be empty, and select everything.
STRICT = ConfigDict(extra="forbid")

# The chart's values use these too (`dev/codegen/chart/words.py`).
QualifiedName = Annotated[str, StringConstraints(pattern=f"^{QUALIFIED}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]

_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}/([0-9]|[12][0-9]|3[0-2])"
_IPV6 = r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])"


def _check_network(cidr: str) -> str:
    try:
        ip_network(cidr)
    except ValueError as error:
        raise ValueError(f"{error}; write the first address of the range, as in 10.0.0.0/8") from error
    return cidr


Cidr = Annotated[str, StringConstraints(pattern=f"^({_IPV4}|{_IPV6})$"), AfterValidator(_check_network)]
"""A range of addresses."""


@with_config(STRICT)
class ExpressionFields(TypedDict):
    """The fields of one entry of `matchExpressions`."""

    key: QualifiedName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: NotRequired[list[LabelValue]]


def _check_values(expression: ExpressionFields) -> ExpressionFields:
    needs, has = expression["operator"] in {"In", "NotIn"}, bool(expression.get("values"))
    if needs and not has:
        raise ValueError(f"operator {expression['operator']} needs values")
    if has and not needs:
        raise ValueError(f"operator {expression['operator']} takes no values")
    return expression


_VALUES_BY_OPERATOR = {
    "if": {"properties": {"operator": {"enum": ["In", "NotIn"]}}},
    "then": {"required": ["values"], "properties": {"values": {"minItems": 1}}},
    "else": {"properties": {"values": {"maxItems": 0}}},
}
Expression = Annotated[ExpressionFields, AfterValidator(_check_values), Field(json_schema_extra=_VALUES_BY_OPERATOR)]
"""One requirement on labels."""


@with_config(STRICT)
class Selector(TypedDict, total=False):
    """Pods or namespaces; all of them if it is empty."""

    matchLabels: Annotated[dict[QualifiedName, LabelValue], Field(json_schema_extra={"additionalProperties": False})]
    matchExpressions: list[Expression]


# `except` is a Python keyword.
AddressFields = TypedDict("AddressFields", {"cidr": Cidr, "except": NotRequired[list[Cidr]]})
with_config(STRICT)(AddressFields)


def _check_exceptions(addresses: AddressFields) -> AddressFields:
    whole = ip_network(addresses["cidr"])
    for each in addresses.get("except", ()):
        part = ip_network(each)
        # A range of another IP version, or of the same size, is not a part of it.
        if part.version != whole.version or part == whole or not part.subnet_of(whole):  # type: ignore[arg-type]  # both have one version here
            raise ValueError(f"except: {each} is not part of {addresses['cidr']}")
    return addresses


Addresses = Annotated[AddressFields, AfterValidator(_check_exceptions)]


@with_config(STRICT)
class PeerFields(TypedDict, total=False):
    """The fields of one entry of a NetworkPolicy's `from`."""

    ipBlock: Addresses
    namespaceSelector: Selector
    podSelector: Selector


def _check_peer(peer: PeerFields) -> PeerFields:
    if not peer:
        raise ValueError("it is empty: set ipBlock, namespaceSelector or podSelector")
    if "ipBlock" in peer and len(peer) > 1:
        raise ValueError("ipBlock excludes selectors: put them into an entry of their own")
    return peer


_ONE_KIND = {"minProperties": 1, "not": {"required": ["ipBlock"], "minProperties": 2}}
Peer = Annotated[PeerFields, AfterValidator(_check_peer), Field(json_schema_extra=_ONE_KIND)]
"""One entry of a NetworkPolicy's `from`."""
