"""A whole release to a registry on loopback, without any other network. Each later change of it is detected."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shlex
import subprocess
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from dev.localcluster.tools import RELEASE, ensure
from dev.release import images, registry, source
from dev.release.commands import ReleaseError
from dev.release.plan import Artifact, Plan, Release, read
from dev.release.signing import SLSA, SPDX, Verifier
from dev.release.verify import verify
from tests.host.machine import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not os.environ.get("LONG"), reason="takes two minutes, the first time five more to build the tools: make test-long"
)

PASSWORD = "a password"
INDEX = "application/vnd.oci.image.index.v1+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
# What is to be reached, the loopback interface, is brought up; nothing else is there.
ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def command(*arguments: object, password: str = PASSWORD, alone: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(ALONE if alone else ()), sys.executable, "-m", "dev.release", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "COSIGN_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def make_key(folder: Path, password: str = PASSWORD) -> Path:
    generate = [str(ensure("cosign")["cosign"]), "generate-key-pair", "--output-key-prefix", str(folder / "cosign")]
    subprocess.run(generate, env={**os.environ, "COSIGN_PASSWORD": password}, check=True, capture_output=True)
    return folder / "cosign.key"


@dataclass(frozen=True, slots=True)
class Released:
    """A release, and its running registry."""

    plan: Plan
    release: Release
    message: str
    verifier: Verifier

    @property
    def operator(self) -> Artifact:
        return next(image for image in self.release.images if image.name == "operator")

    def verify(self) -> None:
        verify(self.plan, self.release, self.verifier)

    def ask(self, verb: str, name: str, content: bytes | None = None, kind: str = OCI) -> bytes:
        """Ask the registry for a manifest of the operator."""
        path = self.operator.repository.removeprefix(f"{self.plan.host}/")
        headers = {"Accept": f"{OCI}, {INDEX}", "Content-Type": kind}
        connection = http.client.HTTPConnection(self.plan.host)
        with closing(connection):
            connection.request(verb, f"/v2/{path}/manifests/{name}", content, headers)
            answer = connection.getresponse()
            assert answer.status in {200, 201}, (verb, name, answer.status)
            return answer.read()

    def get(self, name: str) -> bytes:
        return self.ask("GET", name)

    def put(self, name: str, manifest: bytes, kind: str = OCI) -> str:
        self.ask("PUT", name, manifest, kind)
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def released(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Released]:
    programs = ensure(*RELEASE, "helm", "helm-docs")  # what is built once; a release itself fetches nothing
    images.build()
    folder = tmp_path_factory.mktemp("release")
    done = command("--local", "--dirty", "--key", key, "--folder", folder)
    assert done.returncode == 0, done.stderr
    release = read(folder)
    plan = Plan(release.registry, release.version, folder)
    with registry.serving(folder / "registry", empty=False):
        yield Released(plan, release, done.stdout, Verifier(programs["cosign"], plan.public_key))


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


def succeeds(line: tuple[str, ...]) -> bool:
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def blob(released: Released, digest: str) -> Path:
    hexadecimal = digest.removeprefix("sha256:")
    blobs = released.plan.folder / "registry/content/docker/registry/v2/blobs/sha256"
    return blobs / hexadecimal[:2] / hexadecimal / "data"


def another_image(released: Released) -> bytes:
    """Return the operator's manifest with another digest and the same layers."""
    manifest = json.loads(released.get(released.operator.digest))
    manifest["annotations"] = {**manifest.get("annotations", {}), "example.com/changed": "yes"}
    return json.dumps(manifest).encode()


def test_printed_commands_verify_the_release(released: Released, tmp_path: Path) -> None:
    programs = ensure("cosign", "helm")
    path = os.pathsep.join([*(str(program.parent) for program in programs.values()), os.environ["PATH"]])
    lines = [line.strip() for line in released.message.splitlines() if line.startswith("  ")]
    assert len(lines) == 10
    for line in lines:
        done = subprocess.run(
            shlex.split(line),
            cwd=released.plan.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (line, done.stderr)
    (released.plan.folder / f"trainyard-{released.plan.version}.tgz").stat()


def test_sbom_lists_the_packages_of_the_images(released: Released) -> None:
    def packages(name: str) -> set[str]:
        return {package["name"] for package in json.loads(released.plan.sbom(name).read_text())["packages"]}

    assert {"kopf", "pydantic", "aiohttp", "python3", "ca-certificates"} <= packages("operator")
    assert {"python3-torch", "python3-numpy"} <= packages("trainer")


def test_provenance_names_the_commit(released: Released) -> None:
    [predicate] = released.verifier.predicates(released.operator.reference, SLSA)
    here = source.look()
    assert predicate["buildDefinition"]["externalParameters"]["source"]["digest"] == {"gitCommit": here.commit}
    named = {entry["name"]: entry["digest"] for entry in predicate["buildDefinition"]["resolvedDependencies"]}
    assert named["uv.lock"] == {"sha256": hashlib.sha256((REPOSITORY / "uv.lock").read_bytes()).hexdigest()}
    assert len(named["base"]["sha256"]) == 64


def test_another_key_verifies_nothing(released: Released, tmp_path: Path) -> None:
    make_key(tmp_path)
    other = Verifier(released.verifier.cosign, tmp_path / "cosign.pub")
    with pytest.raises(ReleaseError, match=r"verifying SHA256SUMS failed"):
        verify(released.plan, released.release, other)
    for artifact in (*released.release.images, released.release.chart):
        assert not succeeds(other.signature(artifact.reference))
    assert not succeeds(other.attestation(released.operator.reference, SPDX))


def test_image_changed_after_signing_is_detected(released: Released) -> None:
    before = released.get(released.plan.version)
    tagged = f"{released.operator.repository}:{released.plan.version}"
    assert succeeds(released.verifier.signature(tagged))
    digest = released.put(released.plan.version, another_image(released))
    try:
        assert not succeeds(released.verifier.signature(tagged))
        with pytest.raises(ReleaseError, match=rf"operator:.* is not what was released: it is {digest}"):
            released.verify()
    finally:
        released.put(released.plan.version, before)
    released.verify()


def test_attestation_of_another_image_does_not_verify(released: Released) -> None:
    """A valid attestation of an SBOM is attached to another image."""
    digest = released.put("other", another_image(released))
    index = json.loads(released.get(released.operator.digest.replace(":", "-")))
    moved = []
    for entry in index["manifests"]:
        manifest: dict[str, Any] = json.loads(released.get(entry["digest"]))
        manifest["subject"] |= {"digest": digest, "size": len(another_image(released))}
        content = json.dumps(manifest).encode()
        moved.append(
            {
                **entry,
                "digest": released.put(f"sha256:{hashlib.sha256(content).hexdigest()}", content),
                "size": len(content),
            }
        )
    released.put(digest.replace(":", "-"), json.dumps({**index, "manifests": moved}).encode(), INDEX)
    reference = f"{released.operator.repository}@{digest}"
    for line in (
        released.verifier.signature(reference),
        *(released.verifier.attestation(reference, kind) for kind in (SPDX, SLSA)),
    ):
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode != 0, line
        assert "does not match any digest in statement" in done.stderr  # they were found, and are of another


def test_chart_changed_in_the_registry_is_detected(released: Released) -> None:
    chart = released.plan.packaged.read_bytes()
    file = blob(released, f"sha256:{hashlib.sha256(chart).hexdigest()}")
    with changed(file, chart[:-1] + bytes([chart[-1] ^ 1])), pytest.raises(ReleaseError, match="pulling oci://"):
        released.verify()


def test_files_changed_with_checksums_are_detected(released: Released) -> None:
    sbom = released.plan.sbom("operator")
    content = sbom.read_bytes().replace(b"kopf", b"knopf")
    with changed(sbom, content), pytest.raises(ReleaseError, match="does not match its checksum in SHA256SUMS"):
        released.verify()
    sums = released.plan.sums.read_text()
    forged = sums.replace(hashlib.sha256(sbom.read_bytes()).hexdigest(), hashlib.sha256(content).hexdigest())
    assert forged != sums
    with (
        changed(sbom, content),
        changed(released.plan.sums, forged.encode()),
        pytest.raises(ReleaseError, match="verifying SHA256SUMS failed"),
    ):
        released.verify()


def test_unusable_key_is_reported(key: Path, tmp_path: Path) -> None:
    no_key = tmp_path / "no.key"
    no_key.write_text("no key")
    for file, password, sentence in (
        (key, "another password", "COSIGN_PASSWORD is not its password"),
        (no_key, PASSWORD, "it is not a cosign private key"),
    ):
        done = command("--local", "--dirty", "--key", file, "--folder", tmp_path, password=password, alone=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"the key {file} cannot be used: {sentence}")
