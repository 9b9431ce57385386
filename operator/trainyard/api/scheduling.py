"""`spec.scheduling`: who decides when and where the pods of a job start."""

from typing import Any

from pydantic import Field

from trainyard.api.base import Model, rule

DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
MAX_DNS_NAME = 253


QUEUE = "(has(self.scheduling) && has(self.scheduling.queue) ? self.scheduling.queue : '')"


class Scheduling(Model):
    """Who decides when and where the pods start. Not set: they start at once, wherever the scheduler finds a node."""

    queue: str | None = Field(default=None, min_length=1, max_length=MAX_DNS_NAME, pattern=DNS_NAME)
    """The LocalQueue of Kueue in which the job waits until there is quota for all of its pods. Kueue may take the quota back: then the
    job stops with a checkpoint, and waits again. The label `kueue.x-k8s.io/queue-name` means the same. Not set: no queue."""
    priority_class_name: str | None = Field(default=None, min_length=1, max_length=MAX_DNS_NAME, pattern=DNS_NAME)
    """The WorkloadPriorityClass of Kueue, which decides the order in the queue and who is preempted. The label
    `kueue.x-k8s.io/priority-class` means the same. Not set: the PriorityClass of the pods."""


def scheduling_rules() -> list[dict[str, Any]]:
    """Return the rules of the CRD for changes of `spec.scheduling`."""
    return [
        rule(
            f"{QUEUE} == {QUEUE.replace('self', 'oldSelf')} || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
            "scheduling.queue can be changed only while the job is suspended; set lifecycle.suspend to true first",
            fieldPath=".scheduling",
            reason="FieldValueForbidden",
        ),
    ]
