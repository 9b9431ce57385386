"""The chart as it is released: its values name the released image by digest, and its README says so."""

import shutil
import tempfile
from io import StringIO
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import CommentMark
from ruamel.yaml.scalarstring import PlainScalarString
from ruamel.yaml.tokens import CommentToken

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
    """Return the text of `values.yaml` with the image's repository and digest. All else stays, comments included.

    Raises:
        ReleaseError: the text has no such values, or has them in a form that is not understood.
    """
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 10_000
    document = yaml.load(values)
    section = document.get("image")
    # A map in flow style has no comments.
    if not isinstance(section, CommentedMap) or section.fa.flow_style() or not {"repository", "digest"} <= set(section):
        raise ReleaseError("helm/trainyard/values.yaml has no image.repository or no image.digest to be filled in")
    section["repository"], section["digest"] = image.repository, PlainScalarString(image.digest)
    # The comment above the first key of a map belongs to the map's own key.
    document.ca.items["image"][3] = [CommentToken(f"# -- {ABOUT}\n", CommentMark(2))]
    text = StringIO()
    yaml.dump(document, text)
    return text.getvalue()


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
