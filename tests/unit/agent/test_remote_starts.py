"""Two workers of an MPI job, as real agents. A script stands for the launcher, and another one for its daemon."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_operator import FakeOperator, credentials
from trainyard_agent.mpi import Members
from trainyard_agent.remote_client import ask, connected
from trainyard_agent.remote_lines import Action, LineError

LAUNCH = '"$PRTE_MCA_plm_ssh_agent" -x w-1.w "FROM=launcher;export FROM;$DAEMON" --once'
ADDRESSES = {"w-0.w": "127.0.0.2", "w-1.w": "127.0.0.3"}


class Job:
    """Two workers of a job, and the operator that they share."""

    def __init__(
        self, program: Path, folder: Path, operator: FakeOperator, launcher: str, daemon: str, *, run: bool
    ) -> None:
        """`run`: whether the first attempt is ordered at once."""
        self.operator, self.folder, self.agents = operator, folder, list[AgentProcess]()
        with socket.socket() as free:
            free.bind(("127.0.0.2", 0))
            self.port = free.getsockname()[1]
        script = folder / "prted"
        script.write_text(f"#!{sys.executable}\nimport os, signal, subprocess, sys, time\n{daemon}\n")
        script.chmod(0o755)
        self.order(1, run=run)
        for index in range(2):
            own = folder / f"worker-{index}"
            (own / "tmp").mkdir(parents=True)
            environment = {
                **credentials(folder, operator.port),
                "TRAINYARD_RENDEZVOUS": "wait",
                "TRAINYARD_REPLICA_INDEX": str(index),
                "TRAINYARD_WORKER_NAME": "w-{index}.w",
                "TRAINYARD_REMOTE_START_PORT": str(self.port),
                "TMPDIR": str(own / "tmp"),
                "DAEMON": str(script),
            }
            self.agents.append(AgentProcess(program, own, "--once", "--", "sh", "-c", launcher, **environment))

    def order(self, attempt: int, *, run: bool = True) -> None:
        """Order an attempt, as the coordinator does."""
        environment = {"TRAINYARD_WORKER_ADDRESSES": ",".join(ADDRESSES.values())}
        self.operator.orders = {
            "attempt": attempt,
            "run": run,
            "environment": environment,
            "secret": self.members(attempt).secret,
        }

    def members(self, attempt: int = 1) -> Members:
        return Members(attempt, f"secret of {attempt}", self.port, ADDRESSES, "w-0.w")

    def failure(self) -> dict[str, object]:
        """Return what the first worker that has failed reports, and is not only the consequence of another's failure."""

        def found() -> list[dict[str, object]]:
            polls = [poll for poll in [*self.operator.polls] if poll["state"] == "failed"]
            data = [json.loads(poll["failure"]["message"].split("\n")[0]) for poll in polls]
            return [each for each in data if not each.get("peerLost")]

        until(lambda: bool(found()), 60, "a worker to fail")
        return found()[0]


@contextmanager
def running(
    program: Path, folder: Path, operator: FakeOperator, launcher: str, daemon: str, *, run: bool = True
) -> Iterator[Job]:
    job = Job(program, folder, operator, launcher, daemon, run=run)
    try:
        yield job
    finally:
        for agent in job.agents:
            agent.kill()


def test_daemon_runs_in_the_other_worker(program: Path, folder: Path, operator: FakeOperator) -> None:
    daemon = (
        "names = ('FROM', 'TRAINYARD_REPLICA_INDEX')\n"
        "with open('ran', 'w') as file: file.write(' '.join([*sys.argv[1:], *(os.environ[name] for name in names)]))\n"
        "sys.exit(any('secret of' in value for value in os.environ.values()))"
    )
    with running(program, folder, operator, f"{LAUNCH} && touch launched", daemon) as job:
        assert [agent.wait()[0] for agent in job.agents] == [0, 0]
        assert (folder / "worker-1/ran").read_text() == "--once launcher 1"
        assert (folder / "worker-0/launched").exists()
        assert not (folder / "worker-1/launched").exists()


def test_missing_daemon_is_named_with_its_package(program: Path, folder: Path, operator: FakeOperator) -> None:
    launcher = LAUNCH.replace("$DAEMON", "/nowhere/prted")
    with running(program, folder, operator, launcher, "") as job:
        until(lambda: any(poll["state"] == "failed" for poll in [*operator.polls]), 60, "a worker to fail")
        message = next(poll for poll in operator.polls if poll["state"] == "failed")["failure"]["message"]
        assert (
            "cannot start a daemon: /nowhere/prted: No such file or directory; install an MPI, the same in" in message
        )
        assert job.failure()["exitCode"] != 0


def test_port_in_use_has_reason_and_fix(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running(program, folder, operator, LAUNCH, "", run=False) as job, socket.socket() as other:
        other.bind(("127.0.0.3", job.port))
        other.listen()
        job.order(1)
        until(lambda: any(poll["state"] == "failed" for poll in [*operator.polls]), 60, "a worker to fail")
        message = next(poll for poll in operator.polls if poll["state"] == "failed")["failure"]["message"]
    assert f"cannot listen for launchers in other workers address=127.0.0.3 port={job.port}: Address already" in message
    assert "no other program of the pod, or with hostNetwork of the node, may use this port" in message
    assert "cannot start" not in message


def test_only_worker_is_no_victim(program: Path, folder: Path) -> None:
    """A launcher that fails in a job of one worker counts: no worker is lost."""
    alone = {
        "TRAINYARD_REPLICA_INDEX": "0",
        "TRAINYARD_REPLICAS": "1",
        "TRAINYARD_WORKER_NAME": "w-{index}.w",
        "TRAINYARD_REMOTE_START_PORT": "29600",
    }
    run = AgentProcess(program, folder, "--once", "--", "sh", "-c", "echo 'no such program' >&2; exit 66", **alone)
    assert run.wait()[0] == 66
    assert run.data is not None
    assert not run.data.peer_lost
    assert "no such program" in run.message


@pytest.mark.parametrize(("waits", "code"), [("wait; true", 0), ("exit 0", 1)])
def test_launcher_in_the_background_is_no_success(program: Path, folder: Path, waits: str, code: int) -> None:
    alone = {"TRAINYARD_REPLICA_INDEX": "0", "TRAINYARD_REPLICAS": "1", "TRAINYARD_REMOTE_START_PORT": "29600"}
    (folder / "mpirun").symlink_to("/bin/sleep")
    launched = f"./mpirun {1 if code == 0 else 1000} & sleep 1000 & {waits.replace('wait', 'wait %1')}"
    run = AgentProcess(program, folder, "--once", "--", "bash", "-c", launched, **alone)
    assert run.wait()[0] == code
    message = "the command exited with code 0: mpirun still runs; let the command wait for it"
    assert run.message.partition("\n")[0] == (message if code else "")


def test_launcher_learns_how_its_daemon_exits(program: Path, folder: Path, operator: FakeOperator) -> None:
    launcher = f"{LAUNCH} 2>output; echo $? >code; exit 1"
    with running(program, folder, operator, launcher, "sys.exit('the library libfabric is missing')") as job:
        assert job.agents[0].file("code") == "1\n"
        assert "libfabric is missing" in job.agents[0].file("output")


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(127)"])
def test_lost_daemon_fails_a_launcher_that_succeeds(
    program: Path, folder: Path, operator: FakeOperator, end: str
) -> None:
    with running(program, folder, operator, f"{LAUNCH}; exit 0", end) as job:
        found = job.failure()
        assert found["exitCode"] == (127 if "127" in end else 137)
        lost = operator.wait_for("failed", times=2)
        assert lost["state"] == "failed"
        reported = {poll["failure"]["code"] for poll in operator.polls if poll["state"] == "failed"}
        assert reported == {found["exitCode"], 92}


RANK = "import os, sys, time; open('rank', 'w').write(str(os.getpid())); time.sleep(1.5); sys.exit(7)"


def test_failed_rank_counts_at_once(program: Path, folder: Path, operator: FakeOperator) -> None:
    """Its daemon, as that of MPICH, goes on as if nothing had happened."""
    daemon = (
        f"subprocess.Popen([sys.executable, '-c', {RANK!r}], env={{**os.environ, 'PMI_RANK': '3'}})\ntime.sleep(600)"
    )
    with running(program, folder, operator, LAUNCH, daemon) as job:
        found = job.failure()
        assert (found["rank"], found["exitCode"]) == (3, 7)


def test_killed_daemon_takes_its_ranks_along(program: Path, folder: Path, operator: FakeOperator) -> None:
    rank = RANK.replace("1.5", "600")
    daemon = f"subprocess.Popen([sys.executable, '-c', {rank!r}], start_new_session=True)\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)"
    with running(program, folder, operator, LAUNCH, daemon) as job:
        pid, child = (int(job.agents[1].file(name)) for name in ("pid", "rank"))
        os.kill(pid, 9)
        assert job.failure()["exitCode"] == 137
        until(lambda: not Path(f"/proc/{child}").exists(), 60, "the rank to exit")


def test_attempt_restarts_in_place_with_another_secret(program: Path, folder: Path, operator: FakeOperator) -> None:
    daemon = "sys.exit(0 if os.environ['TRAINYARD_ATTEMPT'] == '2' else 130)"
    with running(program, folder, operator, LAUNCH, daemon) as job:
        job.failure()
        job.order(2)
        assert [agent.wait()[0] for agent in job.agents] == [0, 0]


def test_order_ends_launcher_and_daemons(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running(program, folder, operator, LAUNCH, "open('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)") as job:
        pid = int(job.agents[1].file("pid"))
        job.order(2, run=False)
        operator.wait_for("waiting", 2, times=2)
        assert not Path(f"/proc/{pid}").exists()


def test_others_reach_nothing(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running(program, folder, operator, "sleep 600", "open('ran', 'w').close()") as job:
        operator.wait_for("running", times=2)
        address = ADDRESSES["w-1.w"]
        until(lambda: _answers(job), 60, "the agent to listen")
        for secret in ("", "secret of 2"):
            with pytest.raises((OSError, LineError)):
                ask(job.members()._replace(secret=secret), address, Action.STATE, 5)
        with socket.create_connection((address, job.port)) as stranger:
            stranger.sendall(b"x" * 300_000)
            stranger.settimeout(30)
            assert _is_closed(stranger)
        with connected(job.members(), address) as caller:
            caller.send({"action": "start", "words": ["touch", "ran"]})
            assert "only daemons of MPI" in caller.receive()["refused"]
        assert ask(job.members(), address, Action.STATE, 5) == {"running": 0, "failed": False}
        assert not (folder / "worker-1/ran").exists()


def test_worker_exits_on_request(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running(program, folder, operator, "sleep 600", "") as job:
        operator.wait_for("running", times=2)
        until(lambda: _answers(job), 60, "the agent to listen")
        job.agents[1].process.terminate()
        assert job.agents[1].wait()[0] == 143


def _answers(job: Job) -> bool:
    try:
        return bool(ask(job.members(), ADDRESSES["w-1.w"], Action.STATE, 5)["running"] == 0)
    except (OSError, LineError):
        time.sleep(0.05)
        return False


def _is_closed(stranger: socket.socket) -> bool:
    """Return whether the agent closes the connection. Raises TimeoutError."""
    try:
        while stranger.recv(4096):
            pass
    except ConnectionError:
        pass
    return True
