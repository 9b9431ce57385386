"""Partition the network between two pods on two nodes of the local cluster. All other traffic passes."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dev.demo.target import python
from tests.cluster.kube import Json

CUT = 'ip rule add blackhole from "$0" to "$1" && echo cut && read -r _; ip rule del blackhole from "$0" to "$1"'
"""Forwarded packets are dropped without a word, by the node that the sender is on. Until standard input ends, which the kernel
sees to even where the test is killed."""


@contextmanager
def partition(one: Json, other: Json) -> Iterator[None]:
    """Drop all packets between two pods. Both still reach all other addresses, an operator on the same node included."""
    with ExitStack() as stack:
        for sender, receiver in ((one, other), (other, one)):
            stack.enter_context(_cut(sender, receiver))
        yield


@contextmanager
def _cut(sender: Json, receiver: Json) -> Iterator[None]:
    number = sender["spec"]["nodeName"].removeprefix("node")
    addresses = sender["status"]["podIP"], receiver["status"]["podIP"]
    words = [*python("dev.localcluster"), "node", "exec", number, "--", "sh", "-c", CUT, *addresses]
    # In a session of its own, so that a Ctrl-C at the test leaves it the time to take the rule away.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"cut\n", "the rule was not taken"
            yield
        finally:
            process.stdin.close()
            assert process.wait(timeout=30) == 0, "the rule may still be there"
