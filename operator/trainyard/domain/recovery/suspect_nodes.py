"""Record the nodes that caused failures of a job, which its later attempts avoid for a day. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from trainyard.api.base import increment
from trainyard.api.internal_status import MAX_REASON_LENGTH
from trainyard.api.reasons import Reason
from trainyard.api.status import MAX_SUSPECT_NODES, Avoidance, SuspectNode
from trainyard.domain.decisions import Restart
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodView

SUSPECT_NODE_TTL = timedelta(hours=24)
FAILURES_BEFORE_AVOIDANCE = 2
"""Failures of a node before it is avoided automatically: a single one may be chance."""
HARDWARE_CODES = frozenset({128 + 11})
"""The exit codes of a segmentation fault: bugs cause them too, but broken hardware causes them again on the same node. A
hang is not one. All workers notice it at the same time, and the first to report it may not be the rank that blocks the
others."""
AGENT_SILENT = "AgentSilent"
"""The agent of a worker is silent, and the control plane has not noticed: the scheduler would place the replacement there again."""
LOSSES = frozenset({"DeletionByTaintManager", "ContainerStatusUnknown", AGENT_SILENT})
"""The reasons of disruptions by a node that was unreachable for too long, or that restarted."""


def remembered(job: JobView, now: datetime) -> list[SuspectNode]:
    """Return the suspect nodes that have not expired."""
    if not job.spec.recovery.avoid_nodes:
        return []
    return [node for node in job.status.suspect_nodes if now < node.until]


def can_avoid_node(job: JobView, pod: PodView | None, now: datetime) -> bool:
    """Return whether the job can avoid the node of `pod`. If it already avoids the most it can record, nodes are not the cause."""
    left = len(required(remembered(job, now)))
    return bool(job.spec.recovery.avoid_nodes and pod and pod.node and left < MAX_SUSPECT_NODES)


def record_failure(
    job: JobView, cause: Cause, now: datetime, *, elsewhere: bool, faults: Sequence[str] = ()
) -> list[SuspectNode]:
    """Return the suspect nodes after an attempt that ended because of `cause`.

    `elsewhere`: a rule requests to avoid its node. `faults`: what the cluster says is broken there, as parts of sentences.
    """
    nodes, name = remembered(job, now), cause.pod.node if cause.pod else None
    broken = bool(faults) and not _is_of_program(cause)
    if not job.spec.recovery.avoid_nodes or name is None or not (elsewhere or broken or _is_node_failure(cause)):
        return nodes
    before = next((node for node in nodes if node.name == name), None)
    failures = increment(before.failures) if before else 1
    avoidance = Avoidance.PREFERRED if broken else _avoidance(cause, failures)
    if elsewhere or (before and before.avoidance is Avoidance.REQUIRED):
        avoidance = Avoidance.REQUIRED
    this_node = SuspectNode(
        name=name,
        failures=failures,
        avoidance=avoidance,
        reason=faults[0][:MAX_REASON_LENGTH] if broken else _reason(cause),
        until=now + SUSPECT_NODE_TTL,
    )
    others = sorted((node for node in nodes if node.name != name), key=_weight, reverse=True)
    return [this_node, *others[: MAX_SUSPECT_NODES - 1]]


def _avoidance(cause: Cause, failures: int) -> Avoidance:
    """Return whether a node is avoided after so many failures, where no rule requests it."""
    disruption = cause.pod.disruption if cause.pod else None
    at_once = disruption is not None and disruption.reason == AGENT_SILENT
    return Avoidance.PREFERRED if at_once or failures >= FAILURES_BEFORE_AVOIDANCE else Avoidance.NONE


def describe_avoidance(before: Sequence[SuspectNode], after: Sequence[SuspectNode]) -> str:
    """Return the part of a restart message about a node that is avoided from now on; empty where there is none."""
    stored = {(node.name, node.avoidance) for node in before}
    for node in after:
        if node.avoidance is Avoidance.NONE or (node.name, node.avoidance) in stored:
            continue
        if node.avoidance is Avoidance.REQUIRED:
            return f"; node {node.name} is avoided for 24 hours"
        often = f", the cause of {node.failures} failures," if node.failures > 1 else ""
        return f"; node {node.name}{often} is avoided where possible for 24 hours"
    return ""


def released_nodes(job: JobView, pods: Sequence[PodView], now: datetime) -> Restart | None:
    """Return the restart of unscheduled workers whose pods exclude nodes that the job does not avoid any more."""
    if job.status.running_time or all(pod.scheduled for pod in pods):
        return None
    still = {node.name for node in required(remembered(job, now))}
    nodes = [node.name for node in required(job.status.suspect_nodes) if node.name not in still]
    if not nodes:
        return None
    several = len(nodes) > 1
    message = f"workers are unschedulable, and {', '.join(nodes)} {'are' if several else 'is'} no longer avoided"
    return Restart(Reason.NODES_RELEASED, message)


def required(nodes: Sequence[SuspectNode]) -> list[SuspectNode]:
    """Return the nodes on which no worker may run."""
    return [node for node in nodes if node.avoidance is Avoidance.REQUIRED]


def _is_node_failure(cause: Cause) -> bool:
    if cause.victim:
        return False
    if end := cause.failed_exit:
        return bool(end.hardware_error) or end.code in HARDWARE_CODES
    return cause.reason is Reason.ADMISSION_REJECTED or _reason(cause) in LOSSES


def _is_of_program(cause: Cause) -> bool:
    """Return whether the failure comes from the program or its image for certain, or only follows another one."""
    end = cause.failed_exit
    return cause.victim or (end is not None and bool(end.cause))


def _reason(cause: Cause) -> str:
    pod = cause.pod
    if pod is None:
        return cause.reason
    if end := cause.failed_exit:
        return f"exit code {end.code}"
    why = pod.disruption or pod.issue
    return why.reason[:MAX_REASON_LENGTH] if why else cause.reason


def _weight(node: SuspectNode) -> tuple[bool, datetime]:
    return node.avoidance is Avoidance.REQUIRED, node.until
