"""Checkpoints in an object store: a real S3 server on this machine, which can also fail, be slow, and be away."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from typing_extensions import override

from tests.library.support.processes import run
from tests.library.support.s3 import options, serving
from trainyard_torch import CheckpointError, CheckpointPolicy, Checkpoints, Retention, Store, StoreError

URL = "s3://bucket/job/checkpoints"


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving() as url:
        yield url


@contextmanager
def answering(status: int, seconds: float = 0.0) -> Iterator[str]:
    """A store that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(seconds)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_HEAD = do_POST = do_GET  # noqa: N815 - these are their names

        @override
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def save(endpoint: str, upto: int) -> None:
    weights = torch.full((1000,), float(dist.get_rank()))
    state = {f"rank{dist.get_rank()}": {"w": weights}}
    checkpoints = Checkpoints(URL, policy=CheckpointPolicy(keep=Retention(last=2)), **options(endpoint))
    found = checkpoints.load(state)
    for step in range(found.step + 1 if found else 1, upto + 1):
        weights += 1
        checkpoints.save(step, state, wait=True)
    checkpoints.close()


def load(endpoint: str) -> tuple[int, float]:
    weights = torch.zeros(1000)
    found = Checkpoints(URL, **options(endpoint)).load({f"rank{dist.get_rank()}": {"w": weights}})
    return (found.step if found else 0), float(weights[-1])


def test_they_come_back(endpoint: str, tmp_path: Path) -> None:
    run(2, tmp_path, save, endpoint, 3)
    run(2, tmp_path, save, endpoint, 4)
    assert run(2, tmp_path, load, endpoint) == [(4, 4.0), (4, 5.0)]
    store = Store(URL, **options(endpoint))
    assert (store.read("LATEST") or b"") == b"step-000000000004-000002\n"
    assert len(store.folders()) == 3, "two are kept, and the claims"


def test_a_truncated_one_is_passed_over(endpoint: str, tmp_path: Path) -> None:
    run(2, tmp_path, save, endpoint, 3)
    store = Store(URL, **options(endpoint))
    path = "step-000000000003-000001/__1_0.distcp"
    store.write(path, (store.read(path) or b"")[:-7])
    assert run(2, tmp_path, load, endpoint) == [(2, 2.0), (2, 3.0)]


def test_a_bucket_that_there_is_not(endpoint: str) -> None:
    store = Store("s3://missing/x", **options(endpoint))
    with pytest.raises(StoreError, match=r"cannot write s3://missing/x/a: .*(bucket|Not Found)"):
        store.write("a", b"1")


@pytest.mark.parametrize(("status", "message"), [(403, "Forbidden|denied"), (503, "503|Service Unavailable|reduce")])
def test_a_store_that_refuses(status: int, message: str) -> None:
    with answering(status) as url, pytest.raises(StoreError, match=rf"cannot write {URL}/a: .*({message})"):
        Store(URL, **options(url)).write("a", b"1")


def test_a_store_that_does_not_answer() -> None:
    with answering(200, seconds=1) as url, pytest.raises(StoreError, match=rf"cannot read {URL}/a: .*[Tt]ime"):
        Store(URL, **options(url, patience=0.1)).read("a")


def test_lost_store_costs_the_checkpoint_not_training(caplog: pytest.LogCaptureFixture) -> None:
    state = {"w": {"w": torch.zeros(3)}}
    with serving() as url:
        checkpoints = Checkpoints(URL, **options(url))
        checkpoints.load(state)
        checkpoints.save(1, state, wait=True)
    with caplog.at_level(logging.WARNING):
        checkpoints.save(2, state)
        while checkpoints._pending and not checkpoints._pending.done():
            time.sleep(0.01)
        checkpoints.save(3, state)
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("trainyard_torch")]
    assert message.startswith("the checkpoint of step 2 was not written: ")
    assert "Could not connect to the endpoint" in message
    assert message.endswith("; training continues")
    with pytest.raises(CheckpointError, match="the checkpoint of step 3 was not written"):
        checkpoints.close()
