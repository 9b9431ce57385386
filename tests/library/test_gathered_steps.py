"""Small steps in memory are loaded several at a time, without a trace in samples and positions."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from trainyard_torch.data import Batches, DataShard, SampleOrder
from trainyard_torch.data.batch_builder import BatchBuilder
from trainyard_torch.data.loader import Loader

ALONE = DataShard(0, 1)


def taken(loader: Loader, count: int) -> list[Any]:
    """Return the samples and weights of the next steps."""
    return [[(part.batch[0].tolist(), part.weight, part.last) for part in step] for step in islice(loader, count)]


@pytest.mark.parametrize(("workers", "loaded"), [(0, 1), (2, 16)])
def test_small_steps_are_loaded_together(monkeypatch: pytest.MonkeyPatch, workers: int, loaded: int) -> None:
    numbers = torch.arange(40)
    source, batches, calls = TensorDataset(numbers, numbers / 2), Batches(SampleOrder(40, 1), 4, 2), list[Any]()
    build = BatchBuilder.step

    def counted(*given: Any) -> Any:
        calls.append(given)
        return build(*given)

    monkeypatch.setattr(BatchBuilder, "step", counted)
    with Loader(source, batches, ALONE, num_workers=workers) as loader:
        first = taken(loader, 3)
        assert len(calls) == (3 if loaded == 1 else loaded)
        state = loader.state_dict()
        rest = taken(loader, 20)
        loader.load_state_dict(state)
        assert taken(loader, 20) == rest, "the steps that were loaded ahead do not count"
    wanted = Loader(source, batches, ALONE, num_workers=0)
    assert [*first, *rest] == taken(wanted, 23)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_may_close_during_a_load(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    source, batches = TensorDataset(torch.arange(40), torch.arange(40)), Batches(SampleOrder(40, 1), 4, 4)
    build = BatchBuilder.step

    def closing(*given: Any) -> Any:
        loader.close()
        return build(*given)

    wanted = taken(Loader(source, batches, ALONE, num_workers=0), 2)
    monkeypatch.setattr(BatchBuilder, "step", closing)
    loader = Loader(source, batches, ALONE, num_workers=workers)
    assert taken(loader, 2) == wanted
