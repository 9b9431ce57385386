"""What conditions, taints and cordons say of a node."""

from typing import Any

import pytest

from trainyard.domain.state.node_signals import MAX_SIGNAL_CHARACTERS, NO_SIGNALS, NodeSignals, node_signals


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


HEALTHY = [
    condition("Ready", "True", "KubeletReady"),
    condition("MemoryPressure", "False"),
    condition("NetworkUnavailable", "False", "CalicoIsUp"),
    condition("KernelDeadlock", "False", "KernelHasNoDeadlock"),
    condition("AcceleratedHardwareReady", "True"),
    condition("EtcdIsVoter", "True"),
    condition("FrequentKubeletRestart", "Unknown"),
]


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (condition("KernelDeadlock", "True", "DockerHung"), "condition KernelDeadlock is True (DockerHung)"),
        (condition("GpuXidError", "True", "", "XID 79"), "condition GpuXidError is True (XID 79)"),
        (
            condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),
            "condition AcceleratedHardwareReady is False (NvidiaXID79Error)",
        ),
        (condition("DiskPressure", "True"), "condition DiskPressure is True"),
        (
            condition("Ready", "False", "KubeletNotReady", "the runtime is down"),
            "condition Ready is False (KubeletNotReady)",
        ),
    ],
)
def test_conditions_of_sick_nodes_are_faults(found: dict[str, str], fault: str) -> None:
    assert node_signals({"status": {"conditions": [*HEALTHY, found]}}) == NodeSignals((fault,))


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"spec": None, "status": None},
        {"status": {"conditions": HEALTHY}},
        {"status": {"conditions": [{}, {"type": None, "status": "True"}]}},
        {"spec": {"unschedulable": False, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {}]}},
    ],
)
def test_healthy_nodes_have_no_signals(raw: dict[str, Any]) -> None:
    assert node_signals(raw) is NO_SIGNALS


def test_taints_and_cordons_are_notes() -> None:
    taints = [{"key": key} for key in ("node.kubernetes.io/unschedulable", "karpenter.sh/disrupted", "team")]
    found = node_signals({"spec": {"unschedulable": True, "taints": taints}})
    assert found == NodeSignals((), ("Karpenter removes it", "it is cordoned"))
    assert found.text == "Karpenter removes it, it is cordoned"


def test_text_is_bounded() -> None:
    many = [condition(f"Fault{number}", "True", message="x\n" * 10_000) for number in range(100)]
    found = node_signals({"status": {"conditions": many}})
    assert max(map(len, found.faults)) == MAX_SIGNAL_CHARACTERS
    assert found.text.count("condition ") == 3
    assert "\n" not in found.text
