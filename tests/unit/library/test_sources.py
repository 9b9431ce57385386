import hashlib
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from trainyard_torch.data import (
    Batches,
    BlockSource,
    DataShard,
    DiskCache,
    ReadError,
    ReadOptions,
    RecordDataset,
    RetryPolicy,
    SampleOrder,
    token_dataset,
    write_records,
)
from trainyard_torch.data.records import Index
from trainyard_torch.data.sources import found
from trainyard_torch.data.tokens import RemoteTokens

QUICK = RetryPolicy(attempts=2, initial_seconds=0)
SAMPLES = [bytes([number % 251]) * (number % 7) for number in range(50)]


@pytest.fixture
def bucket() -> Iterator[str]:
    yield "memory://bucket/data"
    with suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


@pytest.fixture(params=["local", "remote"])
def url(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> str:
    return str(tmp_path / "data") if request.param == "local" else bucket


def put(url: str, content: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(content)


def tokens(url: str, count: int, dtype: str = "<u2") -> np.ndarray[Any, Any]:
    values = np.arange(count) * 7 % 60_000
    put(url, values.astype(dtype).tobytes())
    return values


@given(
    count=st.integers(2, 300), length=st.integers(1, 20), block=st.integers(1, 9), dtype=st.sampled_from(["<u2", ">i4"])
)
@settings(deadline=None, max_examples=60)
def test_samples_of_tokens_overlap_by_one(count: int, length: int, block: int, dtype: str) -> None:
    values = tokens("memory://tokens", count, dtype)
    if count <= length:
        with pytest.raises(ValueError, match=f"has {count} tokens, and a sample needs {length + 1}"):
            token_dataset("memory://tokens", length, dtype)
        return
    source = token_dataset("memory://tokens", length, dtype, block=block)
    assert isinstance(source, RemoteTokens)
    wanted = [values[at : at + length + 1].tolist() for at in range(0, count - length, length)]
    assert [sample.tolist() for sample in found(source, range(len(source)))] == wanted
    source.close()


def test_local_tokens_are_not_copied_to_processes(tmp_path: Path) -> None:
    values = tokens(str(tmp_path / "tokens"), 100_001)
    source = token_dataset(str(tmp_path / "tokens"), 100)
    assert source[3].tolist() == values[300:401].tolist()
    assert source[3].dtype == np.int64
    assert len(source) == 1000
    stored = pickle.dumps(source)
    assert len(stored) < 1000
    assert pickle.loads(stored)[999].tolist() == values[99_900:].tolist()  # noqa: S301 - our own


@pytest.mark.parametrize("number", [-1, 10])
def test_there_is_no_such_sample(url: str, number: int) -> None:
    tokens(url, 101)
    with pytest.raises(IndexError, match="samples are 0 to 9"):
        token_dataset(url, 10)[number]


def test_a_read_brings_a_block_and_no_more(bucket: str) -> None:
    tokens(bucket, 10_001)
    source = token_dataset(bucket, 10, block=50)
    assert isinstance(source, RemoteTokens)
    found(source, [125, 101, 149, 100])
    assert (source.reads.count, source.reads.bytes) == (1, 501 * 2)
    found(source, [0, 999, 100])
    assert source.reads.count == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: token_dataset("memory://odd", 4), "has 5 bytes, which is no multiple of the 2 of uint16"),
        (lambda: token_dataset("memory://odd", 4, np.float32), "dtype must be a type of integers"),
        (lambda: token_dataset("memory://odd", 0), "length must be from 1"),
        (lambda: token_dataset("memory://odd", 1, "u1", block=0), "block must be from 1"),
    ],
)
def test_a_file_that_has_no_such_tokens(make: Callable[[], object], message: str) -> None:
    put("memory://odd", b"12345")
    with pytest.raises(ValueError, match=message):
        make()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_records_come_back_as_they_were_written(samples: list[bytes], block: int) -> None:
    memory = fsspec.filesystem("memory")
    if memory.exists("/records"):
        memory.rm("/records", recursive=True)
    index = write_records("memory://records", iter(samples), block=block)
    source = RecordDataset("memory://records")
    assert source.index == index
    backwards = list(range(len(samples)))[::-1]
    assert found(source, backwards) == samples[::-1]
    assert len(source) == len(samples)
    source.close()


def test_records_are_decoded(url: str) -> None:
    write_records(url, SAMPLES, block=8)
    source = RecordDataset(url, len)
    assert found(source, [5, 40, 5]) == [5, 5, 5]
    assert source[13] == 6


def test_sources_pickle_without_their_open_resources(bucket: str) -> None:
    write_records(bucket, SAMPLES, block=8)
    tokens("memory://tokens", 1001)
    for source in (RecordDataset(bucket, len), token_dataset("memory://tokens", 10, block=20)):
        before = source[13]
        stored = pickle.dumps(source)
        assert len(stored) < 3000
        there = pickle.loads(stored)  # noqa: S301 - our own
        assert there._blocks._held == {}
        assert np.array_equal(there[13], before)


def test_writer_holds_one_shard_and_ends_with_index(bucket: str) -> None:
    memory = fsspec.filesystem("memory")
    there: list[list[str]] = []

    def samples() -> Iterator[bytes]:
        for number in range(7):
            there.append(sorted(path.rpartition("/")[2] for path in memory.find("/bucket")))
            yield bytes([number])

    write_records(bucket, samples(), block=3)
    assert there[2:4] == [[], ["shard-000000"]]
    assert there[6] == ["shard-000000", "shard-000001"]
    with pytest.raises(ValueError, match=r"index\.json is there already"):
        write_records(bucket, SAMPLES, block=3)


@pytest.mark.parametrize(
    ("samples", "block", "message"),
    [
        ([], 1, "no sample to write"),
        ([b"1"], 0, "block must be"),
        ([b"1", "2"], 1, "sample 1 must be bytes, got str"),
    ],
)
def test_what_cannot_be_written(bucket: str, samples: list[Any], block: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_records(bucket, samples, block=block)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content[:-1],
            r"shard-000001: tried 2 times, and the answer was \d+ bytes: the file was cut off",
        ),
        (lambda content: content[:-1] + b"?", r"shard-000001 does not match index.json"),
        (lambda content: content + b"?", None),
    ],
)
def test_a_shard_that_was_changed_is_named(bucket: str, change: Callable[[bytes], bytes], message: str | None) -> None:
    write_records(bucket, SAMPLES, block=10)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/data/shard-000001", change(memory.cat_file("/bucket/data/shard-000001")))
    source = RecordDataset(bucket, read_options=ReadOptions(retry=QUICK))
    assert source[9] == SAMPLES[9]
    if message is None:
        assert source[10] == SAMPLES[10], "what follows the shard does no harm"
    else:
        with pytest.raises(ReadError, match=message):
            source[10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-9], "is no index of ours, or was cut off"),
        (lambda _: b"[]", "is no index of ours"),
        (lambda text: text.replace(b'"samples": 50', b'"samples": 51'), "was changed after it was written"),
        (lambda text: text.replace(b'"format": 1', b'"format": 2'), "has format 2, and this release reads 1"),
    ],
)
def test_an_index_that_was_changed_is_reported(bucket: str, change: Callable[[bytes], bytes], message: str) -> None:
    write_records(bucket, SAMPLES, block=10)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/data/index.json", change(memory.cat_file("/bucket/data/index.json")))
    with pytest.raises(ReadError, match=message):
        RecordDataset(bucket)


def test_folder_without_index_is_no_data_set(url: str) -> None:
    with pytest.raises(ReadError, match=r"index\.json: FileNotFoundError"):
        RecordDataset(url)


def test_the_format_is_what_the_text_says(bucket: str) -> None:
    """Who wrote data with an older release reads them with each later one."""
    write_records(bucket, [b"ab", b"", b"c"], block=2)
    memory = fsspec.filesystem("memory")
    first = b"TYREC001" + b"".join(number.to_bytes(8, "little") for number in (2, 2, 0)) + b"ab"
    assert memory.cat_file("/bucket/data/shard-000000") == first
    stored = json.loads(memory.cat_file("/bucket/data/index.json"))
    assert (stored["format"], stored["samples"], stored["block"]) == (1, 3, 2)
    assert stored["shards"][0] == [len(first), hashlib.sha256(first).hexdigest()]
    assert Index.parse(memory.cat_file("/bucket/data/index.json"), "").samples == 3


def test_epoch_reads_blocks_once_and_holds_few(bucket: str) -> None:
    """4000 samples in 125 shards, of which memory holds a tenth."""
    write_records(bucket, (number.to_bytes(8, "little") for number in range(4000)), block=32)
    source = RecordDataset(
        bucket, lambda sample: int.from_bytes(sample, "little"), read_options=ReadOptions(memory=13 * 520)
    )
    order = SampleOrder(len(source), 3, block=source.block, window=4)
    source.check(order, reach=128)
    assert run_epoch(source, order, DataShard(0, 1)) == list(range(4000))
    assert source.reads.count == 1 + 125, "the index, and each shard"
    assert source.reads.bytes < 1.05 * 125 * 520 + len(source.index.text())
    held = next(iter(source._blocks._held.values()))
    assert 0 < held.bytes <= 13 * 520


def test_processes_of_a_node_share_what_they_read(bucket: str, tmp_path: Path) -> None:
    write_records(bucket, (number.to_bytes(8, "little") for number in range(1000)), block=20)
    reading = ReadOptions(disk_cache=DiskCache(str(tmp_path / "cache"), 30 * 200))
    ranks = [
        RecordDataset(bucket, lambda sample: int.from_bytes(sample, "little"), read_options=reading) for _ in range(4)
    ]
    order = SampleOrder(1000, 3, block=20, window=4)
    batches = Batches(order, 40, 10)
    seen = []
    for step in range(25):
        for rank, source in enumerate(ranks):
            for micro in batches.after(step).step(DataShard(rank, 4)):
                seen += found(source, micro.samples.tolist())
    assert sorted(seen) == list(range(1000))
    assert sum(source.reads.count - 1 for source in ranks) == 50


def run_epoch(source: BlockSource, order: SampleOrder, data_shard: DataShard) -> list[int]:
    batches, seen = Batches(order, 40, 40), []
    while batches.epoch < 1:
        for micro in batches.step(data_shard):
            source.prepare(micro.samples)
            seen += found(source, micro.samples.tolist())
        batches = batches.after()
    return sorted(seen)


@pytest.mark.parametrize(
    ("order", "reach", "message"),
    [
        (SampleOrder(50, block=1), 4, r"reads 10 samples at a time.*Make it SampleOrder\(block=10\)"),
        (SampleOrder(50, block=25), 4, "reads 10 samples at a time"),
        (SampleOrder(50, block=10, window=2), 4, r"4 blocks are needed.*ReadOptions\(memory="),
        (SampleOrder(50, block=10, window=1), 20, "3 blocks are needed"),
        (SampleOrder(50, block=20, window=1), 20, "4 blocks are needed"),
        (SampleOrder(50, shuffled=False), 20, "3 blocks are needed"),
        (SampleOrder(50, block=10, window=1), 10, None),
        (SampleOrder(50, shuffled=False), 10, None),
    ],
)
def test_order_that_rereads_blocks_is_refused(bucket: str, order: SampleOrder, reach: int, message: str | None) -> None:
    index = write_records(bucket, [b"12345"] * 50, block=10)
    source = RecordDataset(bucket, read_options=ReadOptions(memory=2 * index.shards[0].size))
    if message is None:
        source.check(order, reach)
    else:
        with pytest.raises(ValueError, match=message):
            source.check(order, reach)


def test_a_source_that_gives_too_few_is_reported() -> None:
    class Short(list[int]):
        def __getitems__(self, numbers: list[int]) -> list[int]:
            return numbers[1:]

    with pytest.raises(ValueError, match="Short was asked for 2 samples and gave 1"):
        found(Short([1, 2, 3]), [0, 1])
    assert found([5, 6, 7], [2, 0]) == [7, 5]


def no_matter(_: bytes) -> bool:
    return True


def test_fork_while_locked_causes_no_deadlock(tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), 1000)
    gone_r, gone_w = os.pipe()

    def read() -> bytes:
        # As a data loader's worker may be forked while a thread is reading.
        if os.fork() == 0:
            os.close(gone_w)
            os.read(gone_r, 1)
            os._exit(0)
        return b"block"

    assert disk.get("key", no_matter, read) == b"block"
    (tmp_path / hashlib.sha256(b"key").hexdigest()).unlink()
    done = threading.Event()

    def take() -> None:
        disk.get("key", no_matter, lambda: b"block")
        done.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert done.wait(10), "the child has the lock still"
    os.close(gone_w)
    os.wait()
    os.close(gone_r)


def test_cache_trouble_is_reported_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCache(str(tmp_path / "cache"), 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert [disk.get(f"key-{number}", no_matter, lambda: b"block") for number in range(3)] == [b"block"] * 3
    monkeypatch.undo()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        f"the cache of blocks in {tmp_path}/cache is of no use: [Errno 28] No space left on device; blocks are read without it"
    )
    (tmp_path / "file").write_text("no folder")
    assert DiskCache(str(tmp_path / "file"), 10).get("key", no_matter, lambda: b"block") == b"block"


def test_what_is_not_of_the_cache_stays(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "mine.txt").write_text("x" * 1000)
    disk = DiskCache(str(tmp_path), 10)
    for number in range(5):
        assert disk.get(f"key-{number}", no_matter, lambda: b"block") == b"block"
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("lock-")}
    assert {"lost+found", "mine.txt"} < names
    assert len(names) == 4, "two blocks fit"


def test_failing_store_is_not_blamed_on_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def away() -> bytes:
        raise OSError("the store is away")

    with pytest.raises(OSError, match="the store is away"):
        DiskCache(str(tmp_path), 10).get("key", no_matter, away)
    assert not caplog.records
