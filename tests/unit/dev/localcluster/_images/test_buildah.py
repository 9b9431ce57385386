"""Command lines, and the sentence on a build that failed."""

import sys
from pathlib import Path

import pytest

from dev.localcluster._images import base
from dev.localcluster._images.buildah import Storage, run_logged
from dev.localcluster.errors import LocalClusterError

STORAGE = Storage(Path("/cache/buildah/overlay"), "overlay")


def test_build_passes_arguments_and_secrets_without_environment() -> None:
    command = STORAGE.build(
        context=Path("/repository"),
        dockerfile=Path("/repository/Dockerfile"),
        reference="localhost/a:dev",
        arguments={"BASE_IMAGE": "localhost/base:1"},
        secrets={"ca-bundle": Path("/etc/ca.crt")},
    )
    assert command[:7] == [
        *("buildah", "--root", "/cache/buildah/overlay", "--runroot", "/run/trainyard-buildah-cache-buildah-overlay"),
        *("--storage-driver", "overlay"),
    ]
    text = " ".join(command[7:])
    assert text == (
        "bud --isolation chroot --network host --layers --build-arg BASE_IMAGE=localhost/base:1 "
        "--secret id=ca-bundle,src=/etc/ca.crt --tag localhost/a:dev --file /repository/Dockerfile /repository"
    )


def test_two_storages_do_not_share_their_mount_counts() -> None:
    other = Storage(Path("/elsewhere/buildah/overlay"), "overlay")
    assert STORAGE.command("info")[4] != other.command("info")[4]


def test_base_uses_host_sources_or_the_default() -> None:
    sources = ["deb http://mirror.test/debian trixie main"]
    assert base.debootstrap(Path("/scratch/rootfs.tar"), sources)[-3:] == ["trixie", "/scratch/rootfs.tar", *sources]
    assert base.debootstrap(Path("/scratch/rootfs.tar"), [])[-2:] == ["trixie", "/scratch/rootfs.tar"]


def test_no_server_is_named_in_the_base() -> None:
    assert not any("://" in word for word in base.debootstrap(Path("rootfs.tar"), []))


def test_successful_step_writes_its_output_to_log(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    run_logged([sys.executable, "-c", "print('hello')"], log, doing="greeting")
    assert log.read_text().splitlines()[-1] == "hello"


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (
            "import sys; print('E: no such package'); sys.exit(100)",
            "building a failed, exit code 100; the whole log is",
        ),
        (
            "import sys; sys.exit('write: No space left on device')",
            "building a failed, the disk is full: free some room",
        ),
    ],
)
def test_failed_step_shows_the_tail_of_log(program: str, sentence: str, tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    with pytest.raises(LocalClusterError) as failure:
        run_logged([sys.executable, "-c", program], log, doing="building a")
    first, *tail = str(failure.value).splitlines()
    assert first.startswith(sentence)
    assert str(log) in first
    assert len(tail) == 20
    assert tail[0] != "  line 0"


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="building a failed: no-such-program is missing"):
        run_logged(["no-such-program"], tmp_path / "build.log", doing="building a")
