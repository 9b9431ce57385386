from typing import Any

import pytest

from trainyard.kube.errors import ApiError

TRAITS = (
    "not_found", "conflict", "already_exists", "gone", "permission_denied", "quota_exceeded", "namespace_terminating", "retryable",
)  # fmt: skip


def answer(code: int, reason: str, message: str = "", **details: Any) -> ApiError:
    return ApiError.from_status(code, {"code": code, "reason": reason, "message": message, "details": details})


@pytest.mark.parametrize(
    ("error", "traits"),
    [
        (answer(404, "NotFound", 'pods "x" not found'), {"not_found"}),
        (answer(409, "AlreadyExists", 'pods "x" already exists'), {"already_exists"}),
        (answer(409, "Conflict", "the object has been modified"), {"conflict"}),
        (answer(410, "Expired", "too old resource version"), {"gone"}),
        (ApiError.from_status(0, {"code": 410, "reason": "Gone", "message": "in the stream"}), {"gone"}),
        (answer(403, "Forbidden", 'User "x" cannot create resource "pods" in API group ""'), {"permission_denied"}),
        (
            answer(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1'),
            {"quota_exceeded"},
        ),
        (
            answer(403, "Forbidden", "forbidden: unable to create", causes=[{"reason": "NamespaceTerminating"}]),
            {"namespace_terminating"},
        ),
        (
            answer(403, "Forbidden", "unable to create new content in namespace n because it is being terminated"),
            {"namespace_terminating"},
        ),
        (answer(422, "Invalid", "spec.replicas: Invalid value: 0"), set()),
        (answer(429, "TooManyRequests"), {"retryable"}),
        (answer(500, "InternalError"), {"retryable"}),
        (answer(503, "ServiceUnavailable"), {"retryable"}),
        (answer(504, "Timeout"), {"retryable"}),
        (ApiError(0, "Unreachable", "connection refused"), {"retryable"}),
        (answer(401, "Unauthorized"), set()),
        (answer(400, "BadRequest"), set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)  # fmt: skip
def test_properties_of_an_error(error: ApiError, traits: set[str]) -> None:
    assert {trait for trait in TRAITS if getattr(error, trait)} == traits


@pytest.mark.parametrize("body", [{}, {"code": None, "details": None}, {"details": {"causes": None}}])
def test_empty_status_object(body: dict[str, Any]) -> None:
    error = ApiError.from_status(500, body)
    assert error.status == 500
    assert "500" in str(error)


def test_retry_after() -> None:
    assert answer(429, "TooManyRequests", retryAfterSeconds=3).retry_after == 3
    assert ApiError.from_status(429, {"details": {"retryAfterSeconds": 3}}, retry_after=1).retry_after == 1
    assert answer(429, "TooManyRequests").retry_after is None
