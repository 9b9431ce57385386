"""Who may reach workers beside those of their own job, as in a NetworkPolicy's `from`. What the API server would refuse is refused here: by the
time that a job's policy is made, whoever has set it is far away.
"""

from ipaddress import ip_network
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, with_config
from typing_extensions import TypedDict

# A field of another name is refused: of a selector nothing would be left, and that selects everything.
STRICT = ConfigDict(extra="forbid")

# The chart's values are made of these too (`dev/codegen/chart/words.py`).
DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
QUALIFIED = rf"({DOMAIN}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?"
QualifiedName = Annotated[str, StringConstraints(pattern=f"^{QUALIFIED}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$")]

_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}/([0-9]|[12][0-9]|3[0-2])"
_IPV6 = r"[0-9a-fA-F:.]*:[0-9a-fA-F:.]*/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])"


def _network(cidr: str) -> str:
    try:
        ip_network(cidr)
    except ValueError as error:
        raise ValueError(f"{error}; write the first address of the range, as in 10.0.0.0/8") from error
    return cidr


Cidr = Annotated[str, StringConstraints(pattern=f"^({_IPV4}|{_IPV6})$"), AfterValidator(_network)]
"""A range of addresses."""


@with_config(STRICT)
class ExpressionFields(TypedDict):
    """What one entry of `matchExpressions` has."""

    key: QualifiedName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: NotRequired[list[LabelValue]]


def _complete(expression: ExpressionFields) -> ExpressionFields:
    wants, has = expression["operator"] in {"In", "NotIn"}, bool(expression.get("values"))
    if wants and not has:
        raise ValueError(f"operator {expression['operator']} needs values")
    if has and not wants:
        raise ValueError(f"operator {expression['operator']} takes no values")
    return expression


_CASES = {
    "if": {"properties": {"operator": {"enum": ["In", "NotIn"]}}},
    "then": {"required": ["values"], "properties": {"values": {"minItems": 1}}},
    "else": {"properties": {"values": {"maxItems": 0}}},
}
Expression = Annotated[ExpressionFields, AfterValidator(_complete), Field(json_schema_extra=_CASES)]
"""What labels are to be."""


@with_config(STRICT)
class Selector(TypedDict, total=False):
    """Which pods or namespaces; all of them where it is empty."""

    matchLabels: Annotated[dict[QualifiedName, LabelValue], Field(json_schema_extra={"additionalProperties": False})]
    matchExpressions: list[Expression]


# `except` is a word of Python's.
AddressFields = TypedDict("AddressFields", {"cidr": Cidr, "except": NotRequired[list[Cidr]]})
with_config(STRICT)(AddressFields)


def _within(addresses: AddressFields) -> AddressFields:
    whole = ip_network(addresses["cidr"])
    for each in addresses.get("except", ()):
        part = ip_network(each)
        # Of two kinds of addresses, or as large, it is none of its parts.
        if part.version != whole.version or part == whole or not part.subnet_of(whole):  # type: ignore[arg-type]  # both are of one version here
            raise ValueError(f"except names {each}, which is no part of {addresses['cidr']}")
    return addresses


Addresses = Annotated[AddressFields, AfterValidator(_within)]


@with_config(STRICT)
class PeerFields(TypedDict, total=False):
    """What one entry of a NetworkPolicy's `from` may have."""

    ipBlock: Addresses
    namespaceSelector: Selector
    podSelector: Selector


def _somebody(peer: PeerFields) -> PeerFields:
    if not peer:
        raise ValueError("it names nobody: give ipBlock, namespaceSelector or podSelector")
    if "ipBlock" in peer and len(peer) > 1:
        raise ValueError("ipBlock stands alone: make an entry of its own for the selectors")
    return peer


_ONE_KIND = {"minProperties": 1, "not": {"required": ["ipBlock"], "minProperties": 2}}
Peer = Annotated[PeerFields, AfterValidator(_somebody), Field(json_schema_extra=_ONE_KIND)]
"""One entry of a NetworkPolicy's `from`."""
