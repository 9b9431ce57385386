"""Start, kill and restore the measured operators."""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from typing_extensions import override

from dev.benchmarks.scale.api import BenchmarkError, wait
from dev.benchmarks.scale.child import daemon, end
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.meter import scrape
from dev.benchmarks.scale.systems import SYSTEMS as SCALED
from dev.benchmarks.scale.systems.base import Command, Ground, Installable
from dev.demo import install, target
from dev.demo.commands import DemoError

START_SECONDS: Final = 90.0
REPLICAS: Final = 2
"""The chart's default."""
PEERS: Final = {
    "training-operator": "training-operator-tuned",
    "jobset": "jobset",
    "jobset-torchrun": "jobset",
}
"""System of the scale benchmark that each peer uses."""


class Operator(ABC):
    """A running operator."""

    @abstractmethod
    def kill(self) -> None:
        """Send SIGKILL to the leader. It is restarted immediately."""

    @abstractmethod
    def leave(self) -> None:
        """Stop the operator until `restore`."""

    @abstractmethod
    def restore(self) -> None:
        """Restore the state before `kill` or `leave`."""

    def nodes(self) -> set[str]:
        """Return the nodes that it runs on."""
        return set()


class Outside(Operator):
    """A peer that runs as a process on this machine. It is restarted immediately, faster than by a kubelet."""

    def __init__(self, name: str, command: Command, log: Path) -> None:
        self._name, self._command, self._log = name, command, log
        self._process = self._start()

    def await_ready(self) -> None:
        """Wait until its caches are filled."""

        def serves() -> bool:
            if self._process.poll() is not None:
                raise BenchmarkError(f"{self._name} exited unexpectedly: see {self._log}")
            try:
                return self._command.ready in scrape(self._command.metrics, self._command.headers)
            except BenchmarkError:
                return False

        wait(serves, START_SECONDS, f"{self._name} does not serve its metrics")

    @override
    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    @override
    def leave(self) -> None:
        end(self._process)

    @override
    def restore(self) -> None:
        if self._process.poll() is not None:
            self._process = self._start()
            self.await_ready()

    def _start(self) -> subprocess.Popen[bytes]:
        return daemon(self._command.argv, self._command.environment, self._log)


class Inside(Operator):
    """Trainyard, installed with the default values of its chart: a leader and a standby."""

    def __init__(self) -> None:
        try:
            self._cluster = target.local()
            install.install(self._cluster)
        except DemoError as error:
            raise BenchmarkError(str(error)) from error
        self._killed: list[str] = []

    @override
    def kill(self) -> None:
        name = self._home("get", "lease", install.RELEASE, "-o", "jsonpath={.spec.holderIdentity}").partition("_")[0]
        self._killed.append(name)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                ours = b"trainyard-operator" in (folder / "cmdline").read_bytes()
                if ours and f"HOSTNAME={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)

    @override
    def leave(self) -> None:
        self._home("scale", "deployment", install.RELEASE, "--replicas=0")
        wait(lambda: not self.nodes(), START_SECONDS, "the operator pods were not deleted")

    @override
    def restore(self) -> None:
        """Replace the killed pods, because the kubelet would delay a second restart."""
        if self._killed:
            self._home("delete", "pod", *self._killed, "--ignore-not-found")
            self._killed.clear()
        self._home("scale", "deployment", install.RELEASE, f"--replicas={REPLICAS}")
        self._home("rollout", "status", "deployment", install.RELEASE, "--timeout=90s")

    @override
    def nodes(self) -> set[str]:
        return set(self._home("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}").split())

    def _home(self, *words: str) -> str:
        try:
            return self._cluster.kube("--namespace", install.NAMESPACE, *words)
        except DemoError as error:
            raise BenchmarkError(str(error)) from error


@contextmanager
def running(name: str, ground: Ground, log: Path) -> Iterator[Operator]:
    """Run the operator of this system.

    Raises:
        BenchmarkError: it cannot be started.
    """
    with started(SCALED[PEERS[name]] if name in PEERS else None, ground, log) as operator:
        yield operator


@contextmanager
def started(peer: Installable | None, ground: Ground, log: Path) -> Iterator[Operator]:
    """Run this peer outside the cluster; None stands for Trainyard, inside.

    Raises:
        BenchmarkError: it cannot be started.
    """
    # Jobs record in a folder of their node, which the chart's default pod security refuses.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    ground.api.ensure("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    if peer is None:
        yield Inside()
        return
    peer.install(ground)
    command = peer.command(ground)
    if command is None:
        raise BenchmarkError(f"{peer.name} has no operator to start")
    operator = Outside(peer.name, command, log)
    try:
        operator.await_ready()
        yield operator
    finally:
        operator.leave()
