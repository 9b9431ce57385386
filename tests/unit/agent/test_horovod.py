"""The store in which ranks of Horovod meet, which the agent of worker 0 serves."""

import socket
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

from tests.unit.agent.agent_process import AgentProcess, running_agent
from tests.unit.agent.rank_scripts import WARM_START_OFF
from trainyard_agent import horovod_store
from trainyard_agent.exit_cause import is_peer_loss
from trainyard_agent.horovod import Rendezvous, await_store, rendezvous
from trainyard_agent.horovod_store import StoreServer
from trainyard_agent.program import stable
from trainyard_agent.ranks import SettingError

RANKS = (
    "HOROVOD_RANK=rank,HOROVOD_SIZE=world-size,HOROVOD_LOCAL_RANK=local-rank,HOROVOD_LOCAL_SIZE=local-world-size,"
    "HOROVOD_CROSS_RANK=worker,HOROVOD_CROSS_SIZE=workers"
)
CLIENT = """
from http.client import HTTPConnection
own, size = os.environ["HOROVOD_RANK"], int(os.environ["HOROVOD_SIZE"])
host, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
def ask(method, key, body=None):
    connection = HTTPConnection(host, port, timeout=10)
    connection.request(method, f"/global/{key}", body)
    answer = connection.getresponse()
    return answer.status, answer.read()
assert ask("PUT", own, b"\\0address of " + own.encode())[0] == 200
found = []
for rank in range(size):
    while (answer := ask("GET", rank))[0] == 404: time.sleep(0.01)
    found.append(answer[1].decode())
assert ask("PUT", f"done-{own}", b"1")[0] == 200
# As in a training, no rank of worker 0, which serves, ends while another one still asks.
for rank in range(size if os.environ["HOROVOD_CROSS_RANK"] == "0" else 0):
    while ask("GET", f"done-{rank}")[0] == 404: time.sleep(0.01)
names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
record(f"met{R}", [found, [os.environ[f"HOROVOD_{name}"] for name in names]])
"""
"""What Horovod's client does: each rank stores its address, and asks for those of all others until it has them."""


@pytest.fixture
def free() -> Rendezvous:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Rendezvous("127.0.0.1", listener.getsockname()[1])


@pytest.fixture
def store(free: Rendezvous) -> Iterator[Rendezvous]:
    with StoreServer(free):
        yield free


def ask(
    where: Rendezvous, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, str | None]:
    """The status, the body, and the length that the header names."""
    connection = HTTPConnection(where.host, where.port, timeout=10)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.getheader("Content-Length")


def agent(program: Path, folder: Path, worker: int, where: Rendezvous) -> AgentProcess:
    command = ["--", sys.executable, "script.py"]
    variables = {
        "TRAINYARD_REPLICA_INDEX": str(worker),
        "TRAINYARD_RANK_VARIABLES": RANKS,
        "TRAINYARD_HOROVOD_RENDEZVOUS": str(where),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": where.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(where.port),
    }
    return AgentProcess(program, folder, *command, **WARM_START_OFF, **variables)


def test_ranks_of_two_workers_meet(program: Path, folder: Path, free: Rendezvous) -> None:
    with running_agent(program, folder, CLIENT, TRAINYARD_REPLICAS="1", TRAINYARD_REPLICA_INDEX="0") as unused:
        # It has written the script, and fails without the variables.
        assert unused.wait()[0] != 0
    # The agent of worker 1 is there first.
    second = agent(program, folder, 1, free)
    first = agent(program, folder, 0, free)
    try:
        assert [each.wait()[0] for each in (first, second)] == [0, 0]
        met = [f"\0address of {rank}" for rank in range(4)]
        assert first.file("met1") == str([met, ["1", "2", "0", "2"]])
        assert second.file("met2") == str([met, ["0", "2", "1", "2"]])
    finally:
        first.kill()
        second.kill()


def test_value_is_kept_until_deleted(store: Rendezvous) -> None:
    assert ask(store, "GET", "/global/0") == (404, b"", "0")
    assert ask(store, "PUT", "/global/0", b"\0\xff") == (200, b"", "0")
    assert ask(store, "PUT", "/local_host/0", b"other scope")[0] == 200
    assert ask(store, "GET", "/global/0") == (200, b"\0\xff", "2")
    assert ask(store, "PUT", "/global/0", b"new")[0] == 200
    assert ask(store, "GET", "/global/0")[1] == b"new"
    assert ask(store, "DELETE", "/global/0")[0] == 200
    assert ask(store, "DELETE", "/global/0")[0] == 200
    assert ask(store, "GET", "/global/0")[0] == 404
    assert ask(store, "GET", "/local_host/0")[1] == b"other scope"


@pytest.mark.parametrize("path", ["/", "/global", "/global/", "//key", "global/0"])
def test_other_paths_are_refused(store: Rendezvous, path: str) -> None:
    assert [ask(store, method, path, b"x")[0] for method in ("GET", "PUT", "DELETE")] == [400, 400, 400]


def test_store_has_a_limit(store: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(store, "PUT", "/a/0", None, **{"Content-Length": "9" * 30})[0] == 413
    assert ask(store, "PUT", "/a/0", None, **{"Content-Length": "-1"})[0] == 400
    monkeypatch.setattr(horovod_store, "MAX_STORE_BYTES", 8)
    assert ask(store, "PUT", "/a/0", b"12345678")[0] == 200
    assert ask(store, "PUT", "/a/1", b"9")[0] == 507
    assert ask(store, "PUT", "/a/0", b"1234567")[0] == 200
    assert ask(store, "PUT", "/a/1", b"8")[0] == 200
    assert ask(store, "DELETE", "/a/0")[0] == 200
    assert ask(store, "PUT", "/a/2", b"1234567")[0] == 200


def test_broken_connection_does_not_stop_the_store(store: Rendezvous, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(store) as broken:
        broken.sendall(b"PUT /a/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf")
    assert ask(store, "GET", "/a/0")[0] == 404
    assert capfd.readouterr().err == ""


def test_ended_attempt_frees_the_port(free: Rendezvous) -> None:
    for _ in range(2):
        with StoreServer(free):
            assert ask(free, "GET", "/global/0")[0] == 404, "the store of the last attempt is gone"
            assert ask(free, "PUT", "/global/0", b"x")[0] == 200


def test_agent_waits_for_the_store(free: Rendezvous) -> None:
    pauses: list[float] = []
    servers: list[StoreServer] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            servers.append(StoreServer(free).__enter__())

    assert await_store(free, lambda: True, pause)
    assert len(pauses) == 3
    servers[0].__exit__()
    assert not await_store(free, lambda: len(pauses) < 5, pauses.append)


@pytest.mark.parametrize(
    "text", ["10.0.0.7", "10.0.0.7:0", "10.0.0.7:70000", "job-worker-0.job:29500", ":29500", "10.0.0.7:x"]
)
def test_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="must be an IP address and a port"):
        rendezvous({"TRAINYARD_HOROVOD_RENDEZVOUS": text})


def test_other_jobs_have_no_store() -> None:
    assert rendezvous({}) is None
    assert rendezvous({"TRAINYARD_HOROVOD_RENDEZVOUS": "10.0.0.7:29500"}) == Rendezvous("10.0.0.7", 29500)


def test_ipv6_is_refused_with_reason(program: Path, folder: Path) -> None:
    variables = {"TRAINYARD_HOROVOD_RENDEZVOUS": "fd00::7:29500"}
    with running_agent(program, folder, "record('ran', 1)", **variables) as run:
        code, _ = run.wait()
    assert code == 126, "no restart can help"
    assert "Horovod's ranks meet over IPv4 alone, and worker 0 has the address fd00::7" in run.message
    assert "cannot start" not in run.message
    assert not (folder / "ran").exists()


def test_port_in_use_is_named(program: Path, folder: Path, free: Rendezvous) -> None:
    where = {"TRAINYARD_HOROVOD_RENDEZVOUS": str(free), "TRAINYARD_REPLICA_INDEX": "0"}
    with socket.create_server(free), running_agent(program, folder, "record('ran', 1)", **where) as run:
        code, _ = run.wait()
    assert code == 1, "a restart may help"
    assert f"cannot serve the rendezvous of Horovod address={free}: Address already in use" in run.message
    assert "cannot start" not in run.message


@pytest.mark.parametrize(
    ("text", "is_victim"),
    [
        ("Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to", True),
        ("[third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.8]:1: Connection reset by peer", True),
        ("Mismatched allreduce tensor shapes: One rank sent a tensor of shape [3]", False),
    ],
)
def test_rank_that_lost_another_is_a_victim(text: str, is_victim: bool) -> None:  # noqa: FBT001 - a parameter of the table
    """As horovod 0.28 says it: each error of a collective has the same type."""
    raised = f"horovod.common.exceptions.HorovodInternalError: {text}"
    found = is_peer_loss(1, f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{raised}\n')
    assert found is is_victim


def test_ranks_variables_are_not_shared() -> None:
    own = {"HOROVOD_RANK": "1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "29500", "HOROVOD_TIMELINE": "/t"}
    assert stable(own) == {"HOROVOD_TIMELINE": "/t"}


def test_stores_serve_many_ranks_at_once(store: Rendezvous) -> None:
    answers: list[int] = []

    def rank(number: int) -> None:
        answers.append(ask(store, "PUT", f"/global/{number}", b"x" * 1000)[0])
        answers.append(ask(store, "GET", f"/global/{number}")[0])

    threads = [Thread(target=rank, args=(number,)) for number in range(64)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == [200] * 128
