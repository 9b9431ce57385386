"""Probes of a worker's container: they wait while no program runs, and check it as the kubelet does otherwise."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import zipapp
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tests.support.polling import until
from tests.unit.agent.agent_process import running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from tests.unit.agent.worker_environment import AGENT_SOURCE, TRAINER_IMAGE, WORKER_VARIABLES
from trainyard_agent.probe_state import ProbeState
from trainyard_agent.progress_files import IN_MEMORY


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("injected")
    zipapp.create_archive(AGENT_SOURCE, folder / "agent", compressed=True)
    shutil.copy(TRAINER_IMAGE / "probe-worker.sh", folder / "probe")
    return folder / "probe"


def probe(script: Path, uid: str, *words: str) -> int:
    environment = {**os.environ, **WORKER_VARIABLES, "TRAINYARD_JOB_UID": uid}
    done = subprocess.run(["/bin/sh", str(script), *words], env=environment, check=False, timeout=30)
    return done.returncode


@pytest.mark.parametrize("delay", [0, 2])
def test_probe_waits_while_no_program_runs(
    program: Path, folder: Path, operator: FakeOperator, script: Path, delay: int
) -> None:
    uid = f"probes-{os.getpid()}-{delay}"

    def fails() -> bool:
        return probe(script, uid, "--", "false") == 1

    variables = {"TRAINYARD_JOB_UID": uid, "TRAINYARD_PROBE_DELAY_SECONDS": str(delay), **WARM_START_OFF}
    code = f"{RANK_PRELUDE}\nif A == '1' and R == 3:\n    wait_for('go'); sys.exit(5)\ntime.sleep(600)"
    with running_agent(program, folder, code, **credentials(folder, operator.port), **variables) as run:
        run.file("ran3-1")
        until(fails, 10, "the first program to be checked at once")
        (folder / "go").touch()
        operator.wait_for("failed")
        assert not fails()
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        assert not fails()
        operator.order(2, run=True)
        run.file("ran2-2")
        began = time.monotonic()
        assert fails() is (delay == 0)
        until(fails, 10, "the next program to be checked")
        assert time.monotonic() - began > delay - 0.5


def test_probe_of_joining_worker_waits(program: Path, folder: Path, operator: FakeOperator, script: Path) -> None:
    uid = f"joins-{os.getpid()}"
    operator.order(1, run=False)
    variables = {"TRAINYARD_JOB_UID": uid, "TRAINYARD_PROBE_DELAY_SECONDS": "0", "TRAINYARD_RENDEZVOUS": "wait"}
    with running_agent(
        program,
        folder,
        f"{RANK_PRELUDE}\ntime.sleep(600)",
        **credentials(folder, operator.port),
        **variables,
        **WARM_START_OFF,
    ) as run:
        operator.wait_for("waiting")
        assert probe(script, uid, "--", "false") == 0
        operator.order(1, run=True)
        run.file("ran2-1")
        until(lambda: probe(script, uid, "--", "false") == 1, 10, "the program to be checked")


def test_probe_without_agent_state_runs(script: Path) -> None:
    assert probe(script, "nobody", "--", "sh", "-c", "exit 3") == 3
    assert probe(script, "nobody", "--", "true") == 0


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = int(self.path.strip("/")) if self.headers["Mine"] == "1" else 500
        self.send_response(status)
        self.end_headers()

    @override
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("status", "code"), [(200, 0), (302, 0), (399, 0), (404, 1), (503, 1)])
def test_http_request_is_made(script: Path, status: int, code: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        request = {"kind": "http", "port": server.server_port, "path": f"/{status}", "timeout": 5, "host": "127.0.0.1"}
        request["headers"] = [{"name": "Mine", "value": "1"}]
        assert probe(script, "nobody", json.dumps(request)) == code


def test_local_program_is_reached_without_host(script: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert probe(script, "nobody", json.dumps({"kind": "tcp", "port": port, "timeout": 1})) == 0
    for kind in ("tcp", "http", "grpc"):
        assert probe(script, "nobody", json.dumps({"kind": kind, "port": port, "timeout": 1})) == 1


@contextmanager
def health_service(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """A gRPC server that knows one answer: `answer` turns the request's message into frames."""

    def serve(server: socket.socket) -> None:
        made, _ = server.accept()
        with made, made.makefile("rb") as stream:
            assert stream.read(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            made.sendall(frame(4, 0, 0, b"") + frame(6, 0, 0, b"01234567"))
            while True:
                length, low, kind, _, _ = struct.unpack(">HBBBI", stream.read(9))
                payload = stream.read(length << 8 | low)
                if kind == 0:
                    made.sendall(answer(payload[5:]))
                    # Closed with something unread, the answer could get lost.
                    stream.read()
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def serving(status: int) -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        assert request == b"\x0a\x02ab"
        message = bytes([0, 0, 0, 0, 2, 8, status])
        # Headers that need no decoding, and a message in two frames.
        return frame(1, 4, 1, b"\x88") + frame(0, 0, 1, message[:3]) + frame(0, 0, 1, message[3:]) + frame(1, 5, 1, b"")

    return answer


@pytest.mark.parametrize(
    ("answer", "code"),
    [(serving(1), 0), (serving(2), 1), (lambda _: frame(1, 5, 1, b"\x88"), 1), (lambda _: frame(7, 0, 0, bytes(8)), 1)],
)
def test_grpc_health_is_asked(script: Path, answer: Callable[[bytes], bytes], code: int) -> None:
    with health_service(answer) as port:
        request: dict[str, Any] = {"kind": "grpc", "port": port, "service": "ab", "timeout": 5, "host": "127.0.0.1"}
        assert probe(script, "nobody", json.dumps(request)) == code


def test_python_of_the_agent_makes_the_request(script: Path, tmp_path: Path) -> None:
    """The PATH of a probe may have no Python: that of the program may be named in its command alone."""
    uid = f"path-{os.getpid()}"
    state = Path(f"/dev/shm/trainyard-probe-{uid}-1-1")  # noqa: S108 - where the agent writes it
    state.write_text(f"check {sys.executable}\n")
    try:
        environment = {**WORKER_VARIABLES, "TRAINYARD_JOB_UID": uid, "PATH": str(tmp_path)}
        with socket.create_server(("127.0.0.1", 0)) as server:
            request = json.dumps({"kind": "tcp", "port": server.getsockname()[1], "timeout": 1})
            done = subprocess.run(["/bin/sh", str(script), request], env=environment, check=False, timeout=30)
        assert done.returncode == 0
    finally:
        state.unlink()


@pytest.mark.parametrize("kind", ["link", "another user"])
def test_probe_believes_only_its_own_users_file(tmp_path: Path, script: Path, kind: str) -> None:
    """In a folder that other users share, such a file could name any program."""
    uid = f"probes-{os.getpid()}-{kind[0]}"
    names = (uid, WORKER_VARIABLES["TRAINYARD_ATTEMPT"], WORKER_VARIABLES["TRAINYARD_REPLICA_INDEX"])
    file = IN_MEMORY / "-".join(["trainyard-probe", *names])
    (tmp_path / "state").write_text("hold x\n")
    if kind == "link":
        file.symlink_to(tmp_path / "state")
    elif os.geteuid() == 0:
        file.write_text("hold x\n")
        os.chown(file, 12345, 12345)
    else:
        pytest.skip("needs root to make a file of another user")
    try:
        assert probe(script, uid, "--", "false") == 1
    finally:
        file.unlink()


def test_probe_state_replaces_what_is_in_its_way(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    state = ProbeState({**WORKER_VARIABLES, "TRAINYARD_PROBE_DELAY_SECONDS": "0"}, print, [tmp_path])
    (file,) = state._files
    os.link(victim, file.with_suffix(".new"))
    state.hold()
    assert victim.read_text() == "kept"
    assert file.read_text().startswith("hold ")
