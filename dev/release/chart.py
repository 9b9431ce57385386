"""The chart as it is released: its values name the released image by digest, and its README says so."""

import shutil
import tempfile
from pathlib import Path

import yaml

from dev.codegen.chart import generated
from dev.localcluster.tools import KUBERNETES_VERSION, ensure
from dev.release.commands import ReleaseError, run
from dev.release.images import digest_of
from dev.release.plan import Artifact, Plan
from dev.release.source import ROOT

CHART = ROOT / "helm/trainyard"
NAME = "trainyard"
ABOUT = "The operator's image: the one that was released with this chart."


def with_image(values: str, image: Artifact) -> str:
    """The text of `values.yaml` with the image's repository and digest; comments and all else stay.

    Raises:
        ReleaseError: the text has no such values, or has them in a form that is not understood.
    """
    lines = values.splitlines()
    if "image:" in lines:
        start = lines.index("image:")
        for number, line in enumerate(lines[start + 1 :], start + 1):
            if line and not line.startswith(" "):
                break
            if line.startswith("  repository:"):
                lines[number - 1 : number + 1] = [f"  # -- {ABOUT}", f"  repository: {image.repository}"]
            elif line.startswith("  digest:"):
                lines[number] = f"  digest: {image.digest}"
    changed = "".join(f"{line}\n" for line in lines)
    read = yaml.safe_load(changed).get("image", {})
    if (read.get("repository"), read.get("digest")) != (image.repository, image.digest):
        raise ReleaseError("helm/trainyard/values.yaml has no image.repository or no image.digest to be filled in")
    return changed


def package(plan: Plan, operator: Artifact) -> Path:
    """Write the chart's archive.

    Raises:
        ReleaseError: helm refuses it.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / NAME
        shutil.copytree(CHART, folder)
        values = folder / "values.yaml"
        values.write_text(with_image(values.read_text(), operator))
        generated.write(folder)
        _helm("lint", "--strict", folder, doing="checking the chart")
        _helm("package", folder, "--destination", plan.folder, doing="packaging the chart")
    return plan.packaged


def push(plan: Plan) -> Artifact:
    """Push the archive; what the registry has there afterwards.

    Raises:
        ReleaseError: the registry does not take it.
    """
    _helm("push", plan.packaged, f"oci://{plan.charts}", *transport(plan), doing=f"pushing {plan.packaged.name}")
    repository = f"{plan.charts}/{NAME}"
    return Artifact(NAME, repository, digest_of(f"{repository}:{plan.version}", plan))


def pull(plan: Plan, chart: Artifact, folder: Path) -> Path:
    """Pull the chart by its digest, as users do; the archive.

    Raises:
        ReleaseError: the registry has none of this digest.
    """
    address = f"oci://{chart.reference}"
    _helm("pull", address, "--destination", folder, *transport(plan), doing=f"pulling {address}")
    [archive] = folder.glob("*.tgz")
    return archive


def rendered(archive: Path) -> str:
    """The manifests that an installation with the chart's own values would apply.

    Raises:
        ReleaseError: helm cannot render it.
    """
    # A helm that was built without a version of Kubernetes takes it to be one that the chart refuses.
    kubernetes = ("--kube-version", KUBERNETES_VERSION)
    return _helm("template", NAME, archive, *kubernetes, doing=f"rendering {archive.name}")


def transport(plan: Plan) -> tuple[str, ...]:
    """How helm reaches the registry."""
    return ("--plain-http",) if plan.plain_http else ()


def _helm(*words: str | Path, doing: str) -> str:
    return run(ensure("helm")["helm"], *words, doing=doing)
