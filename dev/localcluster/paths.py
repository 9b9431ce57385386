"""Where things lie. Makes no folder and reads no file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Paths:
    """Everything is under one cache folder, so that images can be hard-linked from the seed into the nodes."""

    cache: Path

    @property
    def tools(self) -> Path:
        """Programs built from Go modules, a folder for each module and hash."""
        return self.cache / "tools"

    @property
    def images(self) -> Path:
        """OCI archives that every node holds."""
        return self.cache / "images"

    @property
    def seed(self) -> Path:
        """The image store from which nodes are cloned. It outlives the cluster."""
        return self.cache / "seed"

    @property
    def logs(self) -> Path:
        """Return the folder of the last cluster's logs. They are kept after the cluster is deleted."""
        return self.cache / "logs"

    @property
    def audit(self) -> Path:
        """What service accounts have asked of the running cluster's API server, a line of JSON each."""
        return self.state / "audit.log"

    @property
    def state(self) -> Path:
        """The running cluster; gone after `down`."""
        return self.cache / "cluster"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def pids(self) -> Path:
        """One file for each process that was started."""
        return self.state / "pids"

    def node(self, number: int) -> Path:
        """The disk of one node: what a power cut leaves."""
        return self.state / f"node{number}"


def from_environment(environ: Mapping[str, str] = os.environ) -> Paths:
    """The user's cache folder, after the XDG base directory specification (a relative folder there is ignored)."""
    base = Path(environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".cache"
    return Paths(base / "trainyard")
