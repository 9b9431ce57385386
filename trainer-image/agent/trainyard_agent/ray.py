"""How to start Ray in this pod: its command lines, by what the operator has set. Pure, but for the look at a script's first line.

The options are those of `ray start` (ray 2.60). The interpreter of the user's command starts it: all of a cluster must have the same
Python and the same Ray.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainyard_agent.addresses import host_and_port, port_number
from trainyard_agent.command_options import option_value
from trainyard_agent.deepspeed import interpreter_of
from trainyard_agent.program import PYTHON
from trainyard_agent.ranks import SettingError

START_VARIABLE, WORKERS_VARIABLE = "TRAINYARD_RAY_START", "TRAINYARD_RAY_WORKERS"
"""The operator's options of `ray start`, and the number of workers for which the driver waits."""
OPTIONS_VARIABLE = "TRAINYARD_RAY_OPTIONS"
"""The user's options. They follow the operator's, and of an option that is given twice Ray takes the last."""
RAY_OPTION = "--ray"
"""The option of the zipapp that runs this pod's part of a cluster, with the user's command after it."""
HEAD_OPTION, ADDRESS_OPTION, PORT_OPTION = "--head", "--address", "--port"
LOOPBACK, FIND_ADDRESS = "127.0.0.1", "auto"
"""Where a head listens in its pod, and what Ray takes for the cluster that runs there, whatever its port."""
NODE_ADDRESS_OPTION = "--node-ip-address"
SERVERS = ("raylet",)
"""Ray's processes on each node without which it takes no part. `ray start --block` goes on without one that has exited with 0."""
HEAD_SERVERS = ("raylet", "gcs_server")
FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"
"""A program that fails where its interpreter has no Ray."""
JOIN = """
import sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR", namespace="trainyard")
while sum(node["Alive"] for node in ray.nodes()) <= int(sys.argv[2]):
    time.sleep(0.5)
ray.shutdown()
"""
"""A program that exits once so many nodes live beside the head."""


class RayNode(NamedTuple):
    """What runs in one pod of a Ray cluster."""

    interpreter: Sequence[str]
    options: Sequence[str]
    """Of `ray start`."""
    workers: int
    """How many the driver waits for."""
    driver: Sequence[str]
    """The user's command, which the head runs."""

    @property
    def is_head(self) -> bool:
        """Whether this is the head."""
        return HEAD_OPTION in self.options

    @property
    def servers(self) -> Sequence[str]:
        """The names of the processes that must run as long as the node is of use."""
        return HEAD_SERVERS if self.is_head else SERVERS

    @property
    def head_address(self) -> tuple[str, int] | None:
        """The host and the port of the head that this worker joins; None for the head, or where there is no such address."""
        return host_and_port(option_value(self.options, ADDRESS_OPTION))

    @property
    def own_address(self) -> str:
        """The address at which the head's own cluster answers in its pod, whatever RAY_ADDRESS the user has set for the driver."""
        port = port_number(option_value(self.options, PORT_OPTION))
        return FIND_ADDRESS if port is None else f"{LOOPBACK}:{port}"

    def start(self, address: str) -> list[str]:
        """Return the command that runs Ray until it fails. `address`: the IP address of this pod; empty: Ray finds it itself."""
        given = any(each.startswith(NODE_ADDRESS_OPTION) for each in self.options)
        own = [] if given or not address else [f"{NODE_ADDRESS_OPTION}={address}"]
        return [*self.interpreter, "-m", "ray.scripts.scripts", "start", *own, *self.options, "--block"]

    def find(self) -> list[str]:
        """Return the command that fails where there is no Ray."""
        return [*self.interpreter, "-c", FIND]

    def join(self, address: str) -> list[str]:
        """Return the command that exits once all workers have joined the cluster at this address."""
        return [*self.interpreter, "-c", JOIN, address, str(self.workers)]


def ray_node(words: Sequence[str], environment: Mapping[str, str]) -> RayNode | None:
    """Return what to run in a pod with these variables; None where it is none of Ray. Raises SettingError.

    `words`: the user's command.
    """
    start = environment.get(START_VARIABLE)
    if start is None:
        return None
    workers = environment.get(WORKERS_VARIABLE, "")
    if not (workers.isascii() and workers.isdecimal() and len(workers) < 8):
        raise SettingError(f"{WORKERS_VARIABLE} must be a number of workers, got {workers!r}")
    try:
        own = shlex.split(environment.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise SettingError(f"{OPTIONS_VARIABLE} must be options of ray start as a shell reads them: {error}") from error
    return RayNode(_interpreter(words, environment), [*start.split(), *own], int(workers), words)


def _interpreter(words: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    """Return the Python of the user's command; else that of the command `ray`; else `python3`."""
    if PYTHON.fullmatch(words[0]):
        return words[:1]
    return interpreter_of("ray", environment) or ["python3"]
