"""What the agent gives to launchers of MPI."""

import errno
import json
import tempfile
from pathlib import Path

import pytest

from trainyard_agent import mpi
from trainyard_agent.errors import SetUpError
from trainyard_agent.mpi import MpiFiles, launches, members, read_members
from trainyard_agent.ranks import SettingError, place

WORKER = {
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_REPLICAS": "2",
    "TRAINYARD_PROCESSES_PER_REPLICA": "4",
    "TRAINYARD_ATTEMPT": "3",
    "TRAINYARD_JOB_UID": "uid",
    "TRAINYARD_WORKER_NAME": "job-worker-{index}.job",
    "TRAINYARD_WORKER_ADDRESSES": "10.0.0.7,fd00::8",
    "TRAINYARD_REMOTE_START_PORT": "29600",
}


def test_members_have_name_and_address() -> None:
    found = members(WORKER, place(WORKER), "secret")
    assert found is not None
    assert found.hosts == {"job-worker-0.job": "10.0.0.7", "job-worker-1.job": "fd00::8"}
    assert (found.own, found.others) == ("job-worker-1.job", {"job-worker-0.job": "10.0.0.7"})
    assert not launches(place(WORKER))
    assert launches(place({**WORKER, "TRAINYARD_REPLICA_INDEX": "0"}))


@pytest.mark.parametrize(
    ("wrong", "secret", "why"),
    [
        ({"TRAINYARD_WORKER_ADDRESSES": ""}, "s", "addresses of all 2 workers"),
        ({"TRAINYARD_WORKER_ADDRESSES": "10.0.0.7"}, "s", "addresses of all 2 workers"),
        ({"TRAINYARD_WORKER_ADDRESSES": "10.0.0.7,job-worker-1"}, "s", "addresses of all 2 workers"),
        ({"TRAINYARD_REMOTE_START_PORT": "0"}, "s", "from 1 to 65535"),
        ({"TRAINYARD_REMOTE_START_PORT": "x"}, "s", "from 1 to 65535"),
        ({"TRAINYARD_WORKER_NAME": "job"}, "s", "must have {index}"),
        ({}, "", "older than this agent"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, str], secret: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        members({**WORKER, **wrong}, place(WORKER), secret)


def test_single_worker_needs_no_remote_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alone = {**WORKER, "TRAINYARD_REPLICAS": "1", "TRAINYARD_REPLICA_INDEX": "0", "TRAINYARD_WORKER_ADDRESSES": ""}
    assert members(alone, place(alone), "") is None
    with MpiFiles(None, place(alone)) as files:
        variables = files.variables({})
        assert Path(variables["PRTE_MCA_prte_default_hostfile"]).read_text() == "localhost slots=4\n"
        assert "PRTE_MCA_plm_ssh_agent" not in variables


def test_files_are_private_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = members(WORKER, place(WORKER), "secret")
    with MpiFiles(found, place(WORKER)) as files:
        variables = files.variables({"HYDRA_HOST_FILE": "/own/hosts"})
        (folder,) = tmp_path.iterdir()
        assert folder.name == "trainyard-mpi-uid-3"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert read_members(folder) == found
        assert Path(variables["OMPI_MCA_orte_default_hostfile"]).read_text().splitlines() == [
            "job-worker-0.job slots=4",
            "job-worker-1.job slots=4",
        ]
        assert Path(variables["I_MPI_HYDRA_HOST_FILE"]).read_text().splitlines()[1] == "job-worker-1.job:4"
        script = Path(variables["PRTE_MCA_plm_ssh_agent"])
        assert script.stat().st_mode & 0o777 == 0o700
        assert "HYDRA_HOST_FILE" not in variables
        assert not any("secret" in value for value in variables.values())
    assert list(tmp_path.iterdir()) == []


def test_progress_has_one_path_in_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    with MpiFiles(members(WORKER, place(WORKER), "secret"), place(WORKER), tmp_path / "own") as files:
        variables = files.variables({})
        link = Path(variables["TRAINYARD_PROGRESS_DIR"])
        assert link == tmp_path / "tmp/trainyard-mpi-uid-3/progress"
        assert variables["TRAINYARD_RANK_RECORDS"] == f"{link}/records"
        (link / "7").write_text("step 1")
    assert (tmp_path / "own/7").exists()


def test_folder_of_another_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "trainyard-mpi-uid-3").symlink_to(tmp_path / "elsewhere")
    with MpiFiles(members(WORKER, place(WORKER), "secret"), place(WORKER)) as files:
        script = Path(files.variables({})["PRTE_MCA_plm_ssh_agent"])
        assert script.parent.name.startswith("trainyard-mpi-uid-3-")
    assert not (tmp_path / "elsewhere").exists()


def no_temporary_folder() -> str:
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")


def test_memory_serves_where_nothing_else_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_folder)
    monkeypatch.setattr(mpi, "IN_MEMORY", str(tmp_path))
    with MpiFiles(members(WORKER, place(WORKER), "secret"), place(WORKER)) as files:
        assert Path(files.variables({})["PRTE_MCA_plm_ssh_agent"]).parent == tmp_path / "trainyard-mpi-uid-3"


def test_missing_folder_has_reason_and_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary_folder)
    monkeypatch.setattr(mpi, "IN_MEMORY", str(tmp_path / "none"))
    with pytest.raises(SetUpError, match=r"No usable temporary.*none: No such file.*mount an emptyDir at /tmp"):
        MpiFiles(None, place(WORKER)).__enter__()


def test_full_folder_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SetUpError, match=r"cannot write the files of the MPI launcher.*No space left"):
        MpiFiles(None, place(WORKER)).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_members_file_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "members").write_text(json.dumps({"attempt": 1}))
    with pytest.raises(ValueError, match="missing"):
        read_members(tmp_path)
