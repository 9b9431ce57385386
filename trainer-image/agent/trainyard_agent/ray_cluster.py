"""Run Ray in this pod, below the agent: `ray start`, and on the head the user's command once all workers have joined.

The exit code is that of the driver. It is 1 as soon as Ray in this pod is gone. The driver would notice that after a minute, and a worker
without its raylet never.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from trainyard_agent.addresses import connect, host_and_port, own_address
from trainyard_agent.framework_server import FAILED_CODE, MISSING_CODE, FrameworkServer, OverError, log
from trainyard_agent.processes import descendants, processes_by_pid
from trainyard_agent.ray import RayNode, ray_node


class RayCluster(FrameworkServer):
    """The processes of this pod's part of the cluster."""

    name = "Ray"

    def __init__(self, node: RayNode, environment: Mapping[str, str], log: Callable[[str], None]) -> None:
        super().__init__(environment, log)
        self._node = node
        self._served = False
        """Whether all of Ray's processes have run."""

    def _run(self) -> int:  # type: ignore[explicit-override]  # no typing_extensions here
        node = self._node
        if self._prepare(node.find()) != 0:
            self._log(f"cannot start Ray: {' '.join(node.interpreter)} has no module ray; install ray in the image")
            return MISSING_CODE
        if node.head_address is not None:
            self._await_address(*node.head_address, "the head")
        self._server = self._start(node.start(own_address()))
        if not node.is_head:
            return self._serve()
        address = node.own_address
        self._log(f"waiting until the workers have joined workers={node.workers}")
        if (found := host_and_port(address)) is not None:
            self._await_address(*found, "Ray in this pod")
        if (code := self._prepare(node.join(address))) != 0:
            self._log(f"cannot see the workers of the cluster exit_code={code}")
            return code
        self._served = True
        self._log("starting the driver")
        return self._finish(node.driver, is_users=True)

    def _is_given_up(self) -> bool:  # type: ignore[explicit-override]  # no typing_extensions here
        # Ray would try for 30 seconds to tell the head that it leaves.
        head = self._node.head_address
        return head is not None and connect(*head) is not None

    def _check(self, server: int) -> None:  # type: ignore[explicit-override]  # no typing_extensions here
        table = processes_by_pid()
        names = {table[pid].name for pid in descendants(server, table=table)}
        missing = [name for name in self._node.servers if name not in names]
        if missing and self._served and not self._terminated:
            self._log(f"a process of Ray has exited in this pod name={missing[0]} logs=/tmp/ray/session_latest/logs")
            raise OverError(FAILED_CODE)
        self._served = self._served or not missing


def main(command: Sequence[str]) -> int:
    """Run this pod's part of the cluster, with the user's command as its driver."""
    node = ray_node(command, os.environ)
    if node is None:
        raise ValueError("the operator has set no options of ray start")
    code = RayCluster(node, os.environ, log).run()
    sys.stdout.flush()
    return code
