"""The types of the chart's values. Helm's validator (Go's RE2) and Python read their patterns alike."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainyard.api.names import DOMAIN, QUALIFIED
from trainyard.controller.bootstrap.peers import LabelValue, QualifiedName


class Values(BaseModel):
    """A map of these values and no others. `null` must not remove one that is not optional."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class Switch(Values):
    """A part of the chart that can be enabled."""

    enabled: bool


OPTIONAL: Any = Field(default=None)
"""The templates work without this value."""
Once = Field(json_schema_extra={"uniqueItems": True})
"""The items of the list must be unique."""

Port = Annotated[int, Field(ge=1, le=65535)]
OwnPort = Annotated[int, Field(ge=1024, le=65535)]
"""A lower port would need a capability that the operator does not have."""
Text = Annotated[str, Field(min_length=1)]
DURATION = ("y", "w", "d", "h", "m", "s", "ms")
Subdomain = Annotated[str, Field(max_length=253, pattern=f"^{DOMAIN}$")]
OptionalSubdomain = Annotated[str, Field(max_length=253, pattern=f"^({DOMAIN})?$")]
OptionalName = Annotated[str, Field(pattern=r"^([a-z]([a-z0-9-]{0,42}[a-z0-9])?)?$")]
OptionalDuration = Annotated[str, Field(pattern=f"^{''.join(f'([0-9]+{unit})?' for unit in DURATION)}$")]
"""A duration in Prometheus' format."""
Quantity = Annotated[str, Field(pattern=r"^[0-9]+([.][0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
COMPONENT = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REPOSITORY = f"{COMPONENT}(:[0-9]{{1,5}})?(/{COMPONENT})*"
Repository = Annotated[str, Field(max_length=255, pattern=f"^{REPOSITORY}$")]
OptionalImage = Annotated[
    str,
    Field(max_length=512, pattern=f"^({REPOSITORY}(:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?)?$"),
]
"""The reference of an image, as a node pulls it."""
These = Field(json_schema_extra={"additionalProperties": False})
"""Only keys that match the pattern of keys are allowed."""
OptionalQualifiedName = Annotated[str, Field(pattern=f"^({QUALIFIED})?$")]
Labels = Annotated[dict[QualifiedName, LabelValue], These]
Annotations = Annotated[dict[QualifiedName, str], These]
AlertLabels = Annotated[dict[Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")], str], These]
