"""Read the requests of agents (`trainyard.api.agent_protocol`). Nothing in them is trusted before it is validated.

The cost of a request is bounded before pydantic sees it. To validate a large wrong set, and to list its errors, takes
hundreds of milliseconds of the event loop.
"""

import json
from typing import TypeVar

from pydantic import ValidationError

from trainyard.api.agent_protocol import MAX_BODY_BYTES, Part
from trainyard.coordinator.rejections import RefusedError, RejectionReason

T = TypeVar("T", bound=Part)

MAX_SYNC_BODY_BYTES = 64 * 1024
"""Of `/v1/sync`: the longest termination message that an agent sends, each character escaped."""
BASE_REPORT_BYTES, RANK_REPORT_BYTES = 16 * 1024, 16 * 1024
"""Of `/v1/report`: beside the ranks, and for each rank. Four frames of 200 escaped characters are most of a rank."""
SMALL_BODY_BYTES = 4 * 1024
"""A body of this size has too few members to cost much, and is not counted first."""
MIN_MEMBERS = 64
"""Members that each JSON object of a request may have, more where the worker has more ranks."""
MAX_ERRORS_BUILT = 50
"""Of more errors none is described: each takes microseconds to build."""


def max_report_bytes(processes: int) -> int:
    """Return the largest report that a worker with so many processes can send."""
    return min(MAX_BODY_BYTES, BASE_REPORT_BYTES + processes * RANK_REPORT_BYTES)


def read(kind: type[T], body: bytes, max_members: int = 0) -> T:
    """Return a request. Raises RefusedError with the first field that is wrong.

    `max_members`: members that an object may have; never fewer than MIN_MEMBERS.
    """
    if len(body) > SMALL_BODY_BYTES:
        _check_members(body, max(max_members, MIN_MEMBERS))
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if (count := error.error_count()) > MAX_ERRORS_BUILT:
            raise RefusedError(RejectionReason.MALFORMED, f"the body: {count} values are wrong") from error
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"]) or "the body"
        raise RefusedError(RejectionReason.MALFORMED, f"{where}: {first['msg']}") from error


def _check_members(body: bytes, limit: int) -> None:
    """Raise RefusedError for a body with an object of more members. Repeated names count: pydantic validates each."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len(pairs) > limit:
            raise RefusedError(RejectionReason.MALFORMED, f"the body: an object has more than {limit} members")

    try:
        json.loads(body, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        raise RefusedError(RejectionReason.MALFORMED, "the body: no JSON") from error
