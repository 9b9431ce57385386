"""How often the files of a checkpoint are read when it is loaded: verified and loaded from one reading where the layout is the same."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.library.support.models import built
from tests.library.support.processes import run
from trainyard_torch import Checkpoints, NoUsableCheckpointError, TrainState
from trainyard_torch.checkpoint import history, loader
from trainyard_torch.checkpoint.host_memory import HostMemory
from trainyard_torch.checkpoint.loader import readers
from trainyard_torch.checkpoint.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def counted_opens(checkpoints: Checkpoints) -> Counter[str]:
    """The files that are opened to be read from now on, by name."""
    opened: Counter[str] = Counter()
    store = checkpoints._store
    before = store._opened

    def counting(path: str) -> Any:
        opened[path.rpartition("/")[2]] += 1
        return before(path)

    store._opened = counting  # type: ignore[method-assign]  # of one object alone
    return opened


def sharded(folder: Path) -> tuple[Counter[str], bool]:
    model, optimizer = built(shard=1)
    state = {"train_state": TrainState(model, optimizer)}
    checkpoints = Checkpoints(str(folder))
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    saved = [each.detach().to_local().clone() for each in model.parameters()]  # type: ignore[operator]
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    again = Checkpoints(str(folder))
    opened = counted_opens(again)
    again.load(state)
    equal = all(torch.equal(a, b.to_local()) for a, b in zip(saved, model.parameters(), strict=True))  # type: ignore[operator]
    return opened, equal


def test_each_rank_reads_its_own_file_once(tmp_path: Path) -> None:
    for rank, (opened, equal) in enumerate(run(2, tmp_path, sharded, tmp_path / "store")):
        assert opened[f"__{rank}_0.distcp"] == 1
        assert equal


def alone(folder: Path) -> tuple[Checkpoints, dict[str, Any]]:
    state = {"m": {"w": torch.arange(1000.0), "step": 7}}
    checkpoints = Checkpoints(str(folder))
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    return Checkpoints(str(folder)), {"m": {"w": torch.zeros(1000), "step": 0}}


def test_file_is_read_again_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again, state = alone(tmp_path)
    monkeypatch.setattr(loader, "host_memory", lambda: HostMemory(10**9, 1000))
    opened = counted_opens(again)
    assert again.load(state)
    assert opened["__0_0.distcp"] == 2
    assert torch.equal(state["m"]["w"], torch.arange(1000.0))


def test_loaded_bytes_are_the_verified_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes after its verification is not loaded."""
    again, state = alone(tmp_path)
    (file,) = tmp_path.glob("step-*/__0_0.distcp")
    verified = history.verify

    def changed_after(*words: Any, **more: Any) -> Any:
        found = verified(*words, **more)
        file.write_bytes(bytes(file.stat().st_size))
        return found

    monkeypatch.setattr(loader, "verify", changed_after)
    assert again.load(state)
    assert torch.equal(state["m"]["w"], torch.arange(1000.0))
    assert state["m"]["step"] == 7


def test_broken_file_leaves_the_state_alone(tmp_path: Path) -> None:
    again, state = alone(tmp_path)
    (file,) = tmp_path.glob("step-*/__0_0.distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(NoUsableCheckpointError, match="its checksum is another one"):
        again.load(state)
    assert torch.equal(state["m"]["w"], torch.zeros(1000))


def test_every_file_has_one_reader() -> None:
    files = [".metadata", "__0_0.distcp", "__1_0.distcp", "__1_1.distcp", "__5_0.distcp", "extra", "__x_0.distcp"]
    for world_size in (1, 2, 3, 8):
        dealt = readers(files, world_size)
        assert sorted(path for each in dealt for path in each) == sorted(files)
        assert len(dealt) == world_size
    assert readers(files, 8)[1][:2] == ["__1_0.distcp", "__1_1.distcp"]


def test_torchs_checksums_are_off_only_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[bool] = []
    writing = Store.writing

    def looked(*words: Any, **more: Any) -> Any:
        during.append(torch.serialization.get_crc32_options())
        return writing(*words, **more)

    monkeypatch.setattr(Store, "writing", looked)
    alone(tmp_path)
    assert during
    assert not any(during)
    assert torch.serialization.get_crc32_options()
