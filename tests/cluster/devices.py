"""Devices of other vendors on a node of the local cluster: they do not exist, and its kubelet hands them out."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from dev.demo.target import python
from dev.localcluster import tools
from tests.cluster.kube import Kube

SERVE = '"$0" -resource="$1" -count="$2" 2>/dev/null & read -r _; kill $!'
"""Until standard input ends, which the kernel sees to even where the test is killed."""


@contextmanager
def served(kube: Kube, resource: str, count: int, node: int = 1) -> Iterator[None]:
    """Have a device plugin serve so many devices on a node."""
    words = [*python("dev.localcluster"), "node", "exec", str(node), "--", "sh", "-c", SERVE]
    words += [str(tools.ensure("fakegpu")["fakegpu"]), resource, str(count)]
    # In a session of its own, so that a Ctrl-C at the test leaves it the time to end the plugin.
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        try:
            kube.until(lambda: allocatable(kube, resource, node) == str(count), 30, f"{count} of {resource}")
            yield
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0, "the plugin may still run"


def allocatable(kube: Kube, resource: str, node: int = 1) -> str:
    """Return how many devices of a kind the node offers; empty where it has never had any."""
    amount: str = kube.get("node", f"node{node}")["status"]["allocatable"].get(resource, "")
    return amount
