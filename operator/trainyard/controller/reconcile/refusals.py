"""Translate a request that the API server refuses into a refusal of the job's pods, with its remedy. Decides nothing else."""

import re
from dataclasses import dataclass

from trainyard.api.reasons import Reason
from trainyard.domain.status.pod_rejections import Refusal
from trainyard.domain.status.quota_messages import in_words_of_template
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import COMPUTE_DOMAINS, NETWORK_POLICIES, PODS, Resource

BY_POLICY = re.compile(r'admission webhook "|[a-z.]{1,253} "[^"]*" is forbidden: ')
"""The beginning of the API server's message for a rejection by a webhook or an admission policy. They choose any status, and
can change. Nothing else in the answer tells them from an invalid pod, whose message begins with its kind and quotes its values."""

FAILING = re.compile(r'failed calling webhook "([^"]+)"')
BY_WEBHOOK = re.compile(r'admission webhook "[^"]*" denied the request')
"""The beginning of the message for a pod that a webhook refuses, with whatever status it chooses: 500 where its own check fails."""


@dataclass(frozen=True, slots=True)
class NameConflictError(Exception):
    """An object with the requested name has another owner."""

    what: str
    of_predecessor: bool
    """Whether that is a deleted TrainingJob of the same name, whose objects are being deleted."""


class InvalidTemplateError(Exception):
    """No manifest can be built from the template, although the API server's schema accepts it."""


class NetworkProfileError(Exception):
    """No worker can be created, since the network profile of the job cannot be used. The message has the fix."""


def name_taken(error: NameConflictError) -> Refusal:
    """Return the refusal of an object whose name is taken. It passes by itself where a deleted job of that name has it."""
    if error.of_predecessor:
        deleted = f"waiting for {error.what} of the deleted TrainingJob of the same name to be deleted"
        return Refusal(Reason.NAME_CONFLICT, deleted, expected=True)
    return Refusal(Reason.NAME_CONFLICT, f"{error.what} exists and does not belong to this TrainingJob")


def permission_denied_message(error: ApiError) -> str:
    """Describe the missing permission and its remedy. The server's message names verb, resource and namespace."""
    return f"the operator's service account lacks a permission; grant it to continue: {error.message}"


def webhook_failed_message(error: ApiError) -> str:
    """Describe the webhook that fails, and its remedy. Its name comes first: `status.message` has no room for the whole."""
    found = FAILING.search(error.message)
    name = f" {found[1]}" if found else ""
    return (
        f"admission webhook{name} fails; an administrator must repair it, or delete its configuration: {error.message}"
    )


def to_refusal(error: ApiError, kind: Resource | None) -> Refusal:
    """Return the refusal of an object of this kind; None: of a deletion. Raises `error` if a retry may succeed."""
    if error.webhook_failed:
        return Refusal(Reason.WEBHOOK_FAILED, webhook_failed_message(error))
    if BY_WEBHOOK.match(error.message):
        return Refusal(Reason.PODS_FORBIDDEN, error.message)
    if error.retryable or error.namespace_terminating or error.conflict:
        raise error
    if error.permission_denied:
        return Refusal(Reason.PERMISSION_DENIED, permission_denied_message(error))
    if error.quota_exceeded:
        return Refusal(Reason.QUOTA_EXCEEDED, error.message)
    if kind == NETWORK_POLICIES:
        message = (
            "no worker is created because the API server refuses the job's NetworkPolicy; "
            f"correct networkPolicy.jobs of the operator's chart: {error.message}"
        )
        return Refusal(Reason.NETWORK_POLICY_REJECTED, message)
    if kind is not None and kind.kind == "PodGroup":
        message = (
            f"no worker is created because the API server refuses the PodGroup ({kind.qualified}): {error.message}"
        )
        return Refusal(Reason.POD_GROUP_REJECTED, message)
    if kind == COMPUTE_DOMAINS:
        message = (
            "no worker is created because the API server refuses the job's ComputeDomain; install NVIDIA's DRA driver, or leave"
            f" scheduling.computeDomain out: {error.message}"
        )
        return Refusal(Reason.COMPUTE_DOMAIN_REJECTED, message)
    if kind == PODS and error.status in {400, 422} and not BY_POLICY.match(error.message):
        return Refusal(Reason.INVALID_TEMPLATE, error.message)
    return Refusal(Reason.PODS_FORBIDDEN, in_words_of_template(error.message))
