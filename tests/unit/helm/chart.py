"""The chart as a function from values to manifests, rendered by helm itself."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "trainyard"

# A helm that was built by `go install` assumes a cluster of version 1.20.
KUBERNETES = "1.36.0"

Manifest = Mapping[str, Any]


class RefusedError(Exception):
    """Helm refused to render; the text is its message for the user."""


@dataclass(frozen=True, slots=True)
class Release:
    """The manifests that one `helm install` sends to the API server."""

    manifests: Sequence[Manifest]

    def all(self, kind: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        found = [manifest for manifest in self.all(kind) if manifest["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} manifests are {kind} {name}"
        return found[0]

    def operator(self) -> Manifest:
        (deployment,) = self.all("Deployment")
        return deployment

    def container(self) -> Mapping[str, Any]:
        (container,) = self.operator()["spec"]["template"]["spec"]["containers"]
        return dict(container)

    def environment(self) -> dict[str, str | None]:
        """Return the environment by name; `None` for values from the downward API."""
        variables = [(variable["name"], variable.get("value")) for variable in self.container()["env"]]
        assert len(variables) == len(dict(variables)), "a variable is set twice"
        return dict(variables)


@dataclass(frozen=True, slots=True)
class Chart:
    helm: Path
    folder: Path = CHART

    def render(self, values: Mapping[str, Any] | None = None, *, release: str = "trainyard") -> Release:
        """Return the rendered release. Raises RefusedError with helm's message."""
        return Release(tuple(_documents(self.text(values, release=release))))

    def text(self, values: Mapping[str, Any] | None = None, *, release: str = "trainyard") -> str:
        """Return the output of `helm template`. Raises RefusedError with helm's message."""
        return self._helm("template", release, str(self.folder), "--namespace", "trainyard-system", values=values)

    def lint(self) -> str:
        return self._helm("lint", "--strict", str(self.folder))

    def _helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        done = subprocess.run(
            [self.helm, *arguments, "--kube-version", KUBERNETES, "--values", "-"],
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RefusedError(done.stdout + done.stderr)
        return done.stdout


def _documents(text: str) -> Iterator[Manifest]:
    # The C loader: the other one needs half a second for the CRD.
    yield from (document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document)


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and defaults, as the README lists them; `resources` is one value to its reader."""
    for name, value in values.items():
        here = f"{path}{name}"
        if isinstance(value, dict) and value and here != "resources":
            yield from leaves(value, f"{here}.")
        else:
            yield here, value
