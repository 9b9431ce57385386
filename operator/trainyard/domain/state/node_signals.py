"""What the cluster says of a node: its conditions, its taints, and whether it is cordoned. Pure.

Any program may write conditions. By convention, those of a healthy node are False. Those whose name says that something is right are
True: `Ready`, or EKS' `AcceleratedHardwareReady`. node-problem-detector (`KernelDeadlock`), NVSentinel
(`GpuXidError`) and the kubelet (`DiskPressure`) keep to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GOOD_CONDITIONS = ("Ready", "Healthy", "Available", "Voter", "OK")
"""Ends of the names of conditions that are True where all is well."""
TROUBLE_TAINTS = {
    "node.kubernetes.io/not-ready": "it is not ready",
    "node.kubernetes.io/unreachable": "it is unreachable",
    "node.kubernetes.io/out-of-service": "it is out of service",
    "node.kubernetes.io/memory-pressure": "its memory runs out",
    "node.kubernetes.io/disk-pressure": "its disk runs out",
    "node.kubernetes.io/pid-pressure": "its process IDs run out",
    "node.kubernetes.io/network-unavailable": "its network is not available",
    "ToBeDeletedByClusterAutoscaler": "the autoscaler removes it",
    "karpenter.sh/disrupted": "Karpenter removes it",
    "cloud.google.com/impending-node-termination": "its provider is about to stop it",
    "aws-node-termination-handler/spot-itn": "its provider takes the spot instance back",
    "aws-node-termination-handler/scheduled-maintenance": "its provider maintains it",
}
"""Taints of Kubernetes, of autoscalers and of providers. Any other taint may be there to keep the node for some pods."""
CORDONED = "it is cordoned"
MAX_SIGNALS = 3
MAX_SIGNAL_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class NodeSignals:
    """What is wrong with a node."""

    faults: tuple[str, ...] = ()
    """Conditions that say that something is broken, with the reason that they give."""
    notes: tuple[str, ...] = ()
    """Other reasons for which pods leave a node: taints, and cordons."""

    @property
    def text(self) -> str:
        """What is wrong, as the part of a sentence; empty where nothing is known."""
        return ", ".join((*self.faults, *self.notes)[:MAX_SIGNALS])


NO_SIGNALS = NodeSignals()


def node_signals(raw: Mapping[str, Any]) -> NodeSignals:
    """Return what is wrong with this node. A condition or a taint without the fields that Kubernetes requires is left out."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    faults = [text for each in status.get("conditions") or () if (text := _fault(each))]
    notes = [TROUBLE_TAINTS[key] for key in _taints(spec.get("taints") or ()) if key in TROUBLE_TAINTS]
    if spec.get("unschedulable"):
        notes.append(CORDONED)
    return NodeSignals(tuple(faults), tuple(dict.fromkeys(notes))) if faults or notes else NO_SIGNALS


def _fault(condition: Mapping[str, Any]) -> str:
    """Return what a condition says is broken; empty where it says that nothing is. Unknown is what a lost node leaves behind."""
    kind, status = condition.get("type") or "", condition.get("status")
    is_good = kind.endswith(GOOD_CONDITIONS)
    if not kind or status != ("False" if is_good else "True"):
        return ""
    why = condition.get("reason") or condition.get("message") or ""
    text = f"condition {kind} is {status}" + (f" ({why})" if why else "")
    return " ".join(text.split())[:MAX_SIGNAL_CHARACTERS]


def _taints(taints: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(each.get("key")) for each in taints]
