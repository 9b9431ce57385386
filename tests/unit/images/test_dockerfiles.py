"""The rules that all Dockerfiles keep: all is pinned, no process is root at the end, no server or secret stays."""

import re
from pathlib import Path

import pytest

from dev.localcluster.images import IMAGES

ROOT = Path(__file__).parents[3]
DOCKERFILES = {
    "operator": ROOT / "Dockerfile",
    "trainer": ROOT / "trainer-image" / "Dockerfile",
    "frameworks": ROOT / "examples" / "frameworks" / "Dockerfile",
}
SCRIPTS = [*DOCKERFILES.values(), *(ROOT / "trainer-image").glob("*.sh")]
ALL = pytest.mark.parametrize("path", DOCKERFILES.values(), ids=DOCKERFILES.keys())


def instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


@pytest.mark.parametrize("name", ["operator", "trainer"])
def test_base_image_defaults_to_dated_tag_and_digest(name: str) -> None:
    path = DOCKERFILES[name]
    (base,) = [rest for name, rest in instructions(path) if name == "ARG" and rest.startswith("BASE_IMAGE=")]
    assert re.fullmatch(r"BASE_IMAGE=debian:trixie-\d{8}-slim@sha256:[0-9a-f]{64}", base)
    assert instructions(path)[0] == ("ARG", base)


@ALL
def test_every_stage_derives_from_the_base(path: Path) -> None:
    known = {"${BASE_IMAGE}"}
    for rest in (rest for name, rest in instructions(path) if name == "FROM"):
        source, *alias = rest.split(" AS ")
        assert source in known
        known.update(alias)


@ALL
def test_it_ends_as_a_user_with_a_number(path: Path) -> None:
    users = [rest for name, rest in instructions(path) if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


@ALL
def test_nothing_floats(path: Path) -> None:
    assert "latest" not in path.read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_pip_installs_only_hashed_packages(path: Path) -> None:
    commands = re.split(r"&&|\n(?!\s)", path.read_text().replace("\\\n", " "))
    installs = [command.split(" install ", 1)[1] for command in commands if "pip" in command and " install " in command]
    for install in installs:
        packages = [word for word in install.split() if re.match(r"[a-z]", word)]
        assert not packages or "--no-index" in install or "--require-hashes" in install


def test_makefile_installs_uv_by_hash() -> None:
    [install] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert "--require-hashes" in install


def test_cuda_image_gets_infiniband_compiler_and_torchao() -> None:
    """Without libibverbs, NCCL uses TCP and says so only at the level INFO."""
    script = (ROOT / "trainer-image" / "install-torch.sh").read_text()
    [packages] = [
        line.split()[1:] for line in script.splitlines() if line.strip().startswith("apt_install python3-venv")
    ]
    wanted = {"libibverbs1", "ibverbs-providers", "librdmacm1", "gcc", "libc6-dev", "python3-dev"}
    assert wanted <= set(packages)
    assert "\ntorchao==" in (ROOT / "trainer-image" / "requirements-cuda.txt").read_text()


@pytest.mark.parametrize(
    ("path", "package"), [("trainer-image/requirements-cuda.txt", "torch"), ("build-requirements.txt", "uv")]
)
def test_every_locked_package_has_a_hash(path: str, package: str) -> None:
    lock = (ROOT / path).read_text().replace("\\\n", " ")
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert any(line.startswith(f"{package}==") for line in lines)
    assert all("==" in line and "--hash=sha256:" in line for line in lines)
    assert "://" not in lock


def test_the_operators_image_starts_without_a_shell() -> None:
    name, entrypoint = instructions(DOCKERFILES["operator"])[-1]
    assert (name, entrypoint) == ("ENTRYPOINT", '["/opt/trainyard/bin/trainyard-operator"]')


@ALL
def test_secrets_are_mounted_outside_the_image(path: Path) -> None:
    # buildah removes the target of a secret's mount when the step is done, and with it what was there before.
    for mount in re.findall(r"--mount=type=secret,(\S+)", path.read_text()):
        assert "target=" not in mount


@ALL
def test_files_are_copied_and_never_mounted(path: Path) -> None:
    # A mounted file is not a part of the key under which buildah keeps a layer: its change would go unnoticed.
    assert "type=bind" not in path.read_text()


def test_the_frameworks_stand_on_the_trainers_image() -> None:
    assert instructions(DOCKERFILES["frameworks"])[0] == ("ARG", f"BASE_IMAGE={IMAGES['trainer'].reference}")
