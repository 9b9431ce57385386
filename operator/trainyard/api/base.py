"""The base of all models of the API: camelCase names, docs from docstrings, times in whole seconds."""

from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel
from typing_extensions import override

MAX_JSON_INTEGER = 2**53
"""The largest whole number that every JSON reader parses exactly. The CRD limits counters to it."""
MAX_ATTEMPT = 10**12
"""The limit of attempt numbers. It is lower because the names of pods contain the number."""


def increment(count: int) -> int:
    """Return the count plus one. A status that was edited by hand may already hold the maximum."""
    return min(count + 1, MAX_JSON_INTEGER)


class Model(BaseModel):
    """A part of the custom resource.

    Unknown fields are ignored. The API server has rejected those of users already. An operator that was rolled back
    must still read what a newer one stored.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    def evolve(self, **changes: Any) -> Self:
        """Return a copy with these fields changed. Unlike `model_copy`, it validates each value.

        Raises:
            TypeError: a field is unknown.
            pydantic.ValidationError: a value has the wrong type or is out of bounds.
        """
        fields = type(self).model_fields
        if unknown := changes.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        unchanged = {name: getattr(self, name) for name in self.model_fields_set - changes.keys()}
        return type(self).model_validate(unchanged | changes)

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the model itself: it is frozen, and pydantic would copy each default model with every job that it parses."""
        return self

    def dump(self) -> dict[str, Any]:
        """Return the JSON form, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, **more: str | bool) -> dict[str, JsonValue]:
    """Return a CEL rule of the CRD. `message` names the field and the fix."""
    return {"rule": expression, "message": message, **more}


def _whole_seconds(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError(f"{value} is before the begin or after the end of all time") from error


def _rfc3339(value: datetime) -> str:
    # Not strftime: it writes the year 1, Go's zero time, without the zeros that the API server requires.
    return value.isoformat(timespec="seconds").replace("+00:00", "Z")


Time = Annotated[
    datetime,
    AfterValidator(_whole_seconds),
    PlainSerializer(_rfc3339, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A point in time as Kubernetes writes it: UTC, whole seconds, so that the stored time equals the decided one."""
