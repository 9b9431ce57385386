"""Verifies a release as a user would: from the registry and the public key, with no word of the command that made it.

It must hold no private key.
"""

import hashlib
import json
import shlex
import tempfile
from pathlib import Path
from typing import Any

import yaml

from dev.release import chart
from dev.release.commands import ReleaseError, run
from dev.release.images import digest_of
from dev.release.plan import Artifact, Plan, Release
from dev.release.signing import SLSA, SPDX, Verifier


def verify(plan: Plan, release: Release, by: Verifier) -> None:
    """All of it.

    Raises:
        ReleaseError: an artifact does not match the release; the message names it.
    """
    require_sums(plan)
    run(*by.file(plan.sums, plan.signature_of_sums), doing=f"verifying {plan.sums.name}")
    for artifact in (*release.images, release.chart):
        _require_tag(artifact, plan)
        by.require_signed(artifact.reference)
    for image in release.images:
        _require_predicate(by, image, SPDX, plan.sbom(image.name))
        _require_predicate(by, image, SLSA, plan.provenance(image.name))
    operator = next(image for image in release.images if image.name == "operator")
    _require_chart(plan, release.chart, operator)


def require_sums(plan: Plan) -> None:
    """The files are those of the list.

    Raises:
        ReleaseError: one has changed or is missing.
    """
    for line in plan.sums.read_text().splitlines():
        expected, name = line.split(maxsplit=1)
        file = plan.folder / name
        if not file.is_file():
            raise ReleaseError(f"{file} is in {plan.sums.name} but not there")
        if sum_of(file) != expected:
            raise ReleaseError(f"{file} does not match its checksum in {plan.sums.name}")


def sum_of(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def commands(plan: Plan, release: Release) -> list[str]:
    """What users type to see for themselves; the public key and the sums lie in their folder."""
    by = Verifier(Path("cosign"), Path(plan.public_key.name))
    by_file = by.file(Path(plan.sums.name), Path(plan.signature_of_sums.name))
    lines = [by_file, ("sha256sum", "--check", plan.sums.name)]
    for image in release.images:
        lines.append(by.signature(image.reference))
        lines += [by.attestation(image.reference, kind) for kind in (SPDX, SLSA)]
    lines += [
        by.signature(release.chart.reference),
        ("helm", "pull", f"oci://{release.chart.reference}", *chart.transport(plan)),
    ]
    return [shlex.join(line) for line in lines]


def _require_tag(artifact: Artifact, plan: Plan) -> None:
    tagged = f"{artifact.repository}:{plan.version}"
    if (found := digest_of(tagged, plan)) != artifact.digest:
        raise ReleaseError(f"{tagged} is not what was released: it is {found}, and was {artifact.digest}")


def _require_predicate(by: Verifier, image: Artifact, kind: str, file: Path) -> None:
    expected: dict[str, Any] = json.loads(file.read_text())
    # Of several, since a release that was run again has attested again: the last one is among them.
    if expected not in by.predicates(image.reference, kind):
        raise ReleaseError(f"no {kind} attestation of {image.reference} says what {file} does")


def _require_chart(plan: Plan, released: Artifact, operator: Artifact) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        archive = chart.pull(plan, released, Path(scratch))
        if sum_of(archive) != sum_of(plan.packaged):
            raise ReleaseError(f"{released.reference} is not {plan.packaged}")
        documents = [document for document in yaml.safe_load_all(chart.rendered(archive)) if document]
    images = {
        container["image"]
        for document in documents
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    if images != {operator.reference}:
        raise ReleaseError(f"the chart installs {', '.join(sorted(images))} and not {operator.reference}")
