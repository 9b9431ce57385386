"""What the command refuses, in one sentence, before anything is built or pushed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dev.release import steps
from dev.release.__main__ import main
from dev.release.commands import ReleaseError, last_lines, run
from dev.release.plan import Artifact, Plan, Release, read, require_registry
from dev.release.registry import configuration, require_reachable
from dev.release.signing import Verifier, open_key, plainly, statements
from dev.release.verify import commands, require_sums

OPERATOR = Artifact("operator", "registry.example.com/a/operator", "sha256:0b")
CHART = Artifact("trainyard", "registry.example.com/a/charts/trainyard", "sha256:0c")


def plan(folder: Path, registry: str = "registry.example.com/a") -> Plan:
    return Plan(registry, "1.2.3", folder)


@pytest.mark.parametrize(
    "text",
    ["registry.example.com", "https://registry.example.com/a", "registry.example.com/A", "r.example.com/a:1", "", "/a"],
)
def test_a_registry_of_another_form(text: str) -> None:
    with pytest.raises(ReleaseError, match="not of the form HOST/PATH"):
        require_registry(text)


def test_a_registry() -> None:
    assert require_registry("registry.example.com/example/trainyard") == "registry.example.com/example/trainyard"
    assert require_registry("localhost:5000/a") == "localhost:5000/a"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--registry", "r.example.com/a", "--dirty"], "--dirty is for trying out"),
        (["--registry", "r.example.com/a", "--unsigned", "--key", "k"], "--unsigned uses no key"),
        (["--registry", "r.example.com"], "not of the form HOST/PATH"),
        (["--local", "--dirty", "--version", "0.0.0"], "--version says 0.0.0"),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_nothing_was_released_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--local", "--verify", "--folder", str(tmp_path)]) == 1
    assert "holds no release" in capsys.readouterr().err


def test_a_registry_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ReleaseError, match=rf"the registry {host} cannot be reached \(.*refused\): see --registry"):
        require_reachable(host, plain_http=True)


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COSIGN_PASSWORD", raising=False)
    with pytest.raises(ReleaseError, match="--key is missing"):
        open_key(Path("cosign"), None)
    with pytest.raises(ReleaseError, match=r"there is no key .*cosign\.key"):
        open_key(Path("cosign"), tmp_path / "cosign.key")
    (tmp_path / "cosign.key").touch()
    with pytest.raises(ReleaseError, match="COSIGN_PASSWORD is not set"):
        open_key(Path("cosign"), tmp_path / "cosign.key")
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    assert open_key(Path("cosign"), tmp_path / "cosign.key").password == ""


def test_what_is_wrong_with_a_key() -> None:
    assert plainly("reading key: decrypt: encrypted: decryption failed") == "COSIGN_PASSWORD is not its password"
    assert "not a cosign private key" in plainly("invalid pem block")


def test_plain_http_is_for_loopback_alone(tmp_path: Path) -> None:
    assert plan(tmp_path, "127.0.0.1:5000/a").plain_http
    assert not plan(tmp_path, "registry.example.com/a").plain_http
    assert not plan(tmp_path, "localhost.example.com/a").plain_http


def test_the_local_registry_listens_on_loopback(tmp_path: Path) -> None:
    assert configuration(tmp_path, "127.0.0.1:5000")["http"] == {"addr": "127.0.0.1:5000"}


def test_a_program_that_is_missing_or_fails() -> None:
    with pytest.raises(ReleaseError, match="signing failed: the command no-such-program is missing"):
        run("no-such-program", doing="signing")
    with pytest.raises(ReleaseError, match=r"^signing failed: no luck$"):
        run("sh", "-c", "echo first >&2; echo 'Error: no luck' >&2; exit 3", doing="signing")
    with pytest.raises(ReleaseError, match="signing failed: exit code 3"):
        run("sh", "-c", "exit 3", doing="signing")


def test_last_lines() -> None:
    assert last_lines('time="now" level=fatal msg="no \\"manifest\\""\n') == 'no "manifest"'
    assert last_lines("Error: no match\n\nUse --debug to see more\n") == "no match"
    assert last_lines("error during command execution: no match\n") == "no match"


def test_statements_of_cosign() -> None:
    payload = "eyJwcmVkaWNhdGUiOiB7ImEiOiAxfX0="  # {"predicate": {"a": 1}}
    assert statements(f'Verified\n{{"payload": "{payload}"}}\n') == [{"a": 1}]


def test_what_was_released_can_be_read_again(tmp_path: Path) -> None:
    released = Release("registry.example.com/a", "1.2.3", "c0ffee", (OPERATOR,), CHART)
    plan(tmp_path).record.write_text(released.written())
    assert read(tmp_path) == released


def test_foreign_folder_is_left_unchanged(tmp_path: Path) -> None:
    steps.require_ours(tmp_path / "new")
    steps.require_ours(tmp_path)
    (tmp_path / "registry").mkdir()
    with pytest.raises(ReleaseError, match="holds files that are of no release"):
        steps.require_ours(tmp_path)
    (tmp_path / "cosign.pub").touch()
    steps.require_ours(tmp_path)


def test_sums(tmp_path: Path) -> None:
    file = tmp_path / "a b.json"
    file.write_text("{}")
    steps.write_sums(plan(tmp_path))
    require_sums(plan(tmp_path))
    file.write_text("{ }")
    with pytest.raises(ReleaseError, match=r"a b\.json does not match its checksum in SHA256SUMS"):
        require_sums(plan(tmp_path))
    file.unlink()
    with pytest.raises(ReleaseError, match=r"a b\.json is in SHA256SUMS but not there"):
        require_sums(plan(tmp_path))


def test_users_verify_by_digest_and_offline(tmp_path: Path) -> None:
    lines = commands(plan(tmp_path), Release("registry.example.com/a", "1.2.3", "c0ffee", (OPERATOR,), CHART))
    assert lines[0].startswith("cosign verify-blob --key cosign.pub ")
    assert [line for line in lines if line.startswith("cosign") and "--insecure-ignore-tlog" not in line] == []
    for artifact in (OPERATOR, CHART):
        assert f"cosign verify --key cosign.pub --insecure-ignore-tlog=true {artifact.reference}" in lines
    assert lines[-1] == f"helm pull oci://{CHART.reference}"
    assert str(tmp_path) not in "\n".join(lines)
    assert Verifier(Path("cosign"), Path("k")).signature("x")[-1] == "x"
