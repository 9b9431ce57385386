"""What the images are made of: every file that a Dockerfile copies is in the hash, and an image that is there is not built."""

import re
from pathlib import Path

import pytest

from dev.localcluster import images
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import Paths

NAMES = ", ".join(images.IMAGES)
ALL = pytest.mark.parametrize("image", images.IMAGES.values(), ids=images.IMAGES.keys())


def copied(image: images.Image) -> set[Path]:
    """The paths in the repository that the Dockerfile copies."""
    text = image.dockerfile.read_text().replace("\\\n", " ")
    sources = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    return {images.REPOSITORY / image.context / source for source in sources}


@ALL
def test_all_that_is_copied_is_hashed(image: images.Image) -> None:
    hashed = {images.REPOSITORY / name for name in image.inputs}
    assert copied(image)
    for path in {*copied(image), image.dockerfile}:
        assert any(path == one or one in path.parents for one in hashed), path


def test_build_context_holds_only_files_that_are_copied() -> None:
    lines = (images.REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert {images.REPOSITORY / name for name in allowed} == copied(images.IMAGES["operator"])


@ALL
def test_existing_image_is_not_rebuilt(image: images.Image, tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    archive = image.archive(paths.images)
    archive.parent.mkdir()
    archive.write_bytes(b"built")
    old = archive.with_name(f"{image.name}-0123456789ab.tar")
    old.touch()
    assert images.build(image.name, paths=paths) == [archive]
    assert archive.read_bytes() == b"built"
    assert not old.exists()


def test_unknown_image_name_lists_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(
        LocalClusterError,
        match=f"there is no image trainr; there are {NAMES}",
    ):
        images.build("operator", "trainr", paths=Paths(tmp_path))


def test_the_command_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert images.main(["build", "trainr"]) == 1
    assert capsys.readouterr().err == f"there is no image trainr; there are {NAMES}\n"


def copy(root: Path) -> None:
    """A repository that has every input of every image, as a file of a few bytes."""
    for name in {name for image in images.IMAGES.values() for name in image.inputs}:
        path = root / name / "file" if (images.REPOSITORY / name).is_dir() else root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_image_hash_changes_with_its_base_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(tmp_path)
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    before = {name: image.contents for name, image in images.IMAGES.items()}
    (tmp_path / "trainer-image/file").write_text("changed")
    # The agent's sources alone are the operator's too.
    assert [name for name, image in images.IMAGES.items() if image.contents != before[name]] == [
        "trainer",
        "cuda",
        "frameworks",
        "frameworks-horovod",
        "frameworks-jax",
        "frameworks-tensorflow",
        "frameworks-ray",
        "frameworks-mxnet",
        "frameworks-paddle",
        "frameworks-flower",
        "peers-ray",
        "peers-mpi",
    ]


def test_derived_image_is_built_only_on_request(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.images.mkdir()
    there = [images.IMAGES[name].archive(paths.images) for name in ("operator", "trainer")]
    for archive in there:
        archive.touch()
    assert images.build(paths=paths) == there
