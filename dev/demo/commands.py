"""Run other programs: show their output to the user, or capture it and check the exit code."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class DemoError(Exception):
    """The demo cannot continue; the message is printed to the user."""


def say(text: str) -> None:
    """Print a line for the user, prefixed with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def show(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command and show its output to the user. Raises DemoError."""
    sys.stdout.flush()
    code = subprocess.run(command, check=False, env=environment).returncode
    if code:
        raise DemoError(f"`{' '.join(command[:4])} …` exited with code {code}; see its output above")


def capture(command: list[str], *, stdin: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Raises DemoError with the error output."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin, env=environment)
    if done.returncode:
        raise DemoError(f"`{' '.join(command[:6])}`: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and the programs that connect to it."""

    kubectl: Path
    helm: Path
    kubeconfig: Path | None = None
    context: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    """References of the images `operator` and `trainer`, as the nodes pull them."""
    revision: str = ""
    """Identifies the operator's image. It changes when a rebuilt image keeps its reference, so that Helm replaces the pods."""
    job: str = "examples/digits/overlays/local"
    """Folder of the kustomization for this cluster."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point the programs to the cluster."""
        return {**os.environ, **({"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {})}

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the kubectl command line with these arguments."""
        return [str(self.kubectl), *(["--context", self.context] if self.context else []), *arguments]

    def kube(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output. Raises DemoError."""
        return capture(self.kubectl_command(*arguments), stdin=stdin, environment=self.environment)

    def show_kube(self, *arguments: str) -> None:
        """Run kubectl and show its output to the user."""
        show(self.kubectl_command(*arguments), self.environment)

    def helm_command(self, *arguments: str) -> str:
        """Run helm and return its output. Raises DemoError."""
        context = ["--kube-context", self.context] if self.context else []
        return capture([str(self.helm), *context, *arguments], environment=self.environment)
