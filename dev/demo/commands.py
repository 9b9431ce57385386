"""Starting other programs: with their output shown, or kept and checked. Decides nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


class DemoError(Exception):
    """What went wrong, as the one sentence to print."""


def say(text: str) -> None:
    """A line for the user, with the time of day in front of it."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def show(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run with the output going to the user. Raises DemoError."""
    sys.stdout.flush()
    code = subprocess.run(command, check=False, env=environment).returncode
    if code:
        raise DemoError(f"`{' '.join(command[:4])} …` ended with exit code {code}; what it said stands above")


def capture(command: list[str], *, stdin: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Run and return the output. Raises DemoError with what the program said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin, env=environment)
    if done.returncode:
        raise DemoError(f"`{' '.join(command[:6])}`: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster to talk to: the programs, and how they find it."""

    kubectl: Path
    helm: Path
    kubeconfig: Path | None = None
    context: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    """The references of the images `operator` and `trainer` as the nodes know them."""
    revision: str = ""
    """Changes with the operator's image where its reference stays the same: without it the old pods would go on."""
    job: str = "examples/digits/overlays/local"
    """The folder of the kustomization that fits this cluster."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the programs find the cluster."""
        return {**os.environ, **({"KUBECONFIG": str(self.kubeconfig)} if self.kubeconfig else {})}

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The kubectl command line with these arguments."""
        return [str(self.kubectl), *(["--context", self.context] if self.context else []), *arguments]

    def kube(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl and return its output. Raises DemoError."""
        return capture(self.kubectl_command(*arguments), stdin=stdin, environment=self.environment)

    def show_kube(self, *arguments: str) -> None:
        """Run kubectl for the user to see."""
        show(self.kubectl_command(*arguments), self.environment)

    def helm_command(self, *arguments: str) -> str:
        """Run helm and return its output. Raises DemoError."""
        context = ["--kube-context", self.context] if self.context else []
        return capture([str(self.helm), *context, *arguments], environment=self.environment)
