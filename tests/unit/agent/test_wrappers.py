"""The operator and the agent see through the same wrappers of commands: they share no code."""

from trainyard.frameworks import launch_command
from trainyard_agent import launchers


def test_operator_and_agent_know_same_wrappers() -> None:
    assert launch_command.WRAPPERS.keys() == launchers.WRAPPERS
