"""The steps of a release, in their order. Each step can be repeated: existing results are kept or overwritten."""

import json
import os
from pathlib import Path

from dev.localcluster.say import say
from dev.release import chart, images
from dev.release.commands import ReleaseError, run
from dev.release.plan import Artifact, Plan, Release
from dev.release.provenance import builder, predicate
from dev.release.signing import SLSA, SPDX, Signer
from dev.release.source import ROOT, Source
from dev.release.verify import sum_of

PUBLISHED_KEY = ROOT / "cosign.pub"
"""The key that users know, once there is one."""


def public_key(signer: Signer, *, published: bool) -> str:
    """The public half of the key.

    Raises:
        ReleaseError: it cannot be used, or should be the `published` one and is not.
    """
    key = signer.public_key()
    if published and PUBLISHED_KEY.exists() and PUBLISHED_KEY.read_text().split() != key.split():
        raise ReleaseError(f"{signer.key} is not the private key of {PUBLISHED_KEY.name}, by which users verify")
    return key


def require_ours(folder: Path) -> None:
    """The folder is empty, or holds an earlier release: its files will go.

    Raises:
        ReleaseError: it holds something else.
    """
    ours = (PUBLISHED_KEY.name, "release.json")
    if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in ours):
        raise ReleaseError(f"{folder} holds files that are of no release: name an empty folder")


def release(plan: Plan, source: Source, signer: Signer | None, key: str, syft: Path) -> Release:
    """Build, push and describe all of it, and sign it where there is a signer.

    Raises:
        LocalClusterError: an image could not be built.
        ReleaseError: another step failed.
    """
    _require_new(plan)
    archives = images.build()
    _clear(plan.folder)
    if key:
        plan.public_key.write_text(key)
    pushed = tuple(_image(archives[name], name, plan, source, signer, syft) for name in images.RELEASED)
    say("the chart: packaging and pushing")
    chart.package(plan, next(image for image in pushed if image.name == "operator"))
    released = Release(plan.registry, plan.version, source.commit, pushed, chart.push(plan))
    if signer:
        signer.sign(released.chart.reference)
    plan.record.write_text(released.written())
    write_sums(plan)
    if signer:
        signer.sign_file(plan.sums, plan.signature_of_sums)
    return released


def _image(archive: Path, name: str, plan: Plan, source: Source, signer: Signer | None, syft: Path) -> Artifact:
    say(f"the image {name}: pushing")
    image = images.push(archive, name, plan)
    say(f"the image {name}: writing the SBOM")
    sbom(image, plan, syft)
    statement = predicate(images.described(archive, name, plan.version), source, builder(os.environ))
    plan.provenance(name).write_text(json.dumps(statement, indent=2) + "\n")
    if signer is None:
        return image
    say(f"the image {name}: signing {image.digest}")
    signer.sign(image.reference)
    signer.attest(image.reference, SPDX, plan.sbom(name))
    signer.attest(image.reference, SLSA, plan.provenance(name))
    return image


def sbom(image: Artifact, plan: Plan, syft: Path) -> None:
    """Write what is in the image, as the registry has it.

    Raises:
        ReleaseError: syft could not read it.
    """
    options = ("--output", f"spdx-json={plan.sbom(image.name)}", "--quiet")
    named = ("--source-name", image.repository, "--source-version", plan.version)
    run(
        *(syft, "scan", f"registry:{image.reference}", *named, *options),
        doing=f"writing the SBOM of {image.reference}",
        environment={
            "SYFT_CHECK_FOR_APP_UPDATE": "false",
            "SYFT_REGISTRY_INSECURE_USE_HTTP": str(plan.plain_http).lower(),
        },
    )


def _require_new(plan: Plan) -> None:
    """The chart is what a release pushes last: where it is, the version is out, and stays what it is."""
    tagged = f"{plan.charts}/{chart.NAME}:{plan.version}"
    try:
        images.digest_of(tagged, plan)
    except ReleaseError:
        return
    raise ReleaseError(f"{tagged} has been released already: raise the version in pyproject.toml and Chart.yaml")


def _clear(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in sorted(files, key=lambda file: file.name == PUBLISHED_KEY.name):  # what tells that it is ours goes last
        file.unlink()


def write_sums(plan: Plan) -> None:
    """The checksums of all files that are there."""
    files = sorted(file for file in plan.folder.iterdir() if file.is_file())
    plan.sums.write_text("".join(f"{sum_of(file)}  {file.name}\n" for file in files))
