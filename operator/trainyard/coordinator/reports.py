"""Read the requests of agents (`trainyard.api.agent_protocol`). Nothing in them is trusted before it is validated."""

from typing import TypeVar

from pydantic import ValidationError

from trainyard.api.agent_protocol import Part
from trainyard.coordinator.rejections import RefusedError, RejectionReason

T = TypeVar("T", bound=Part)


def read(kind: type[T], body: bytes) -> T:
    """Return a request. Raises RefusedError with the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"]) or "the body"
        raise RefusedError(RejectionReason.MALFORMED, f"{where}: {first['msg']}") from error
