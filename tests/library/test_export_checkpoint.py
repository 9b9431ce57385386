"""An export from a checkpoint has the bytes of the export of its model, and holds one file's tensors in memory at a time."""

from __future__ import annotations

import ctypes
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import override

from tests.library.support.equality import PLAN, Layer, transformer
from tests.library.support.processes import run
from trainyard_torch import (
    CheckpointError,
    Checkpoints,
    ExportError,
    NoUsableCheckpointError,
    Parallelism,
    TrainState,
    export_checkpoint,
    export_model,
    pipeline_stages,
    read_record,
    shard,
    tensor_parallel,
)
from trainyard_torch.export.__main__ import main
from trainyard_torch.export.from_checkpoint import INDEX


def saved(models: Any, url: str, *steps: int) -> None:
    """Save checkpoints of these models, by all ranks."""
    parameters = [
        each for model in ([models] if isinstance(models, nn.Module) else models) for each in model.parameters()
    ]
    checkpoints = Checkpoints(url)
    checkpoints.load(state := {"train_state": TrainState(models, torch.optim.SGD(parameters))})
    for step in steps or (1,):
        checkpoints.save(step, state, data={"cursor": 8 * step}, metrics={"loss": 1 / step}, wait=True)
    checkpoints.close()


def trained(folder: Path) -> None:
    """By ranks: a checkpoint and an export of the same model in each layout."""
    world_size = dist.get_world_size()
    mesh = Parallelism().mesh(world_size, "cpu")
    model = transformer()
    shard(model, mesh, blocks=[part for part in model if isinstance(part, Layer)])
    saved(model, str(folder / "shard"))
    export_model(model, str(folder / "gathered"))
    tensors = Parallelism(tensor=2).mesh(world_size, "cpu")
    saved(tensor_parallel(transformer(), tensors, PLAN), str(folder / "tensor"))
    saved(pipeline_stages(transformer(), Parallelism(pipeline=2).mesh(world_size, "cpu")), str(folder / "pipeline"))


def test_the_bytes_are_those_of_the_gathered_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file  # noqa: PLC0415 - as in the other tests of exports

    run(2, tmp_path, trained, tmp_path)
    gathered = read_record(str(tmp_path / "gathered"))
    assert gathered
    for layout in ("shard", "tensor", "pipeline"):
        url = str(tmp_path / f"{layout}-out")
        record = export_checkpoint(str(tmp_path / layout), url)
        assert read_record(url, verify=True) == record
        assert (record.weights, record.parameters) == (gathered.weights, gathered.parameters)
        assert record.files == gathered.files, layout
        assert (record.data, record.metrics, record.environment["world_size"]) == ({"cursor": 8}, {"loss": 1.0}, 2)
    several = export_checkpoint(str(tmp_path / "shard"), str(tmp_path / "several"), max_file_bytes=2000)
    assert several.weights == gathered.weights
    index = json.loads((tmp_path / "several" / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert files == [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    assert sorted(several.files) == sorted([INDEX, *files])
    expected = transformer().state_dict()
    found = {name: tensor for file in files for name, tensor in load_file(tmp_path / "several" / file).items()}
    assert found.keys() == expected.keys() == index["weight_map"].keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    for file in files:
        own = load_file(tmp_path / "several" / file)
        assert len(own) == 1 or sum(tensor.nbytes for tensor in own.values()) <= 2000


LAYERS, WIDE = 24, 1024


def memory(name: str) -> int:
    """A figure of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def peak(checkpoints: str, url: str, max_file_bytes: int) -> int:
    """The bytes that an export takes at most, above those of before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is freed counts as memory otherwise
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the memory of now
    before = memory("VmRSS")
    export_checkpoint(checkpoints, url, max_file_bytes=max_file_bytes)
    return memory("VmHWM") - before


def test_memory_is_bounded_by_a_file(tmp_path: Path) -> None:
    one, url = 4 * WIDE * WIDE, str(tmp_path / "made")
    saved(nn.Sequential(*(nn.Linear(WIDE, WIDE, bias=False) for _ in range(LAYERS))), url)
    # The first one also imports what it needs.
    _, small, whole = (
        peak(url, str(tmp_path / folder), size)
        for folder, size in (("first", 2 * one), ("small", 2 * one), ("whole", LAYERS * one))
    )
    assert len(list((tmp_path / "small").glob("*.safetensors"))) == LAYERS // 2
    # A file has two tensors; the next part of the checkpoint and buffers come on top.
    assert small < 8 * one, (small / one, whole / one)
    assert whole > (LAYERS - 4) * one, (small / one, whole / one)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head, self.bias = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


TIED = {"head.weight": "embedding.weight"}


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    from safetensors.torch import load_model  # noqa: PLC0415 - as above

    model = Tied()
    saved(model, str(tmp_path / "made"))
    expected = export_model(model, str(tmp_path / "gathered"))
    record = export_checkpoint(str(tmp_path / "made"), str(tmp_path / "out"), tied=TIED)
    assert (record.tied, record.parameters, record.weights) == (TIED, expected.parameters, expected.weights)
    assert record.files == expected.files
    load_model(other := Tied(), tmp_path / "out" / "model.safetensors")
    assert torch.equal(other.head.weight, model.head.weight)
    for tied, message in (
        ({"bias.weight": "embedding.weight"}, "bias.weight and embedding.weight have other values in the checkpoint"),
        ({"tail.weight": "embedding.weight"}, "the checkpoint has no tail.weight, but bias.bias, bias.weight"),
        ({**TIED, "embedding.weight": "bias.weight"}, "head.weight is tied to embedding.weight, which is tied itself"),
    ):
        with pytest.raises(ExportError, match=message):
            export_checkpoint(str(tmp_path / "made"), str(tmp_path / "wrong"), tied=tied)
        assert read_record(str(tmp_path / "wrong")) is None


def test_the_newest_checkpoint_that_is_usable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = str(tmp_path / "made")
    saved(nn.Linear(3, 2), url, 1, 2)
    before = sorted((tmp_path / "made").rglob("*"))
    newest = export_checkpoint(url, str(tmp_path / "newest"))
    origin = {"folder": url, "name": "step-000000000002-000001", "step": 2, "attempt": 1}
    assert newest.checkpoint == {**origin, "key": "train_state"}
    (data,) = (tmp_path / "made" / "step-000000000002-000001").glob("*.distcp")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    made = export_checkpoint(url, str(tmp_path / "out"))
    assert made.checkpoint["step"] == 1
    assert "skipped checkpoint step-000000000002-000001: " in caplog.text
    assert sorted((tmp_path / "made").rglob("*")) == before, "no claim: a training there may continue"
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 7 in .*: there are 1, 2"):
        export_checkpoint(url, str(tmp_path / "none"), step=7)
    with pytest.raises(NoUsableCheckpointError, match=r"no checkpoint in .* is usable"):
        export_checkpoint(url, str(tmp_path / "none"), step=2)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: there are none"):
        export_checkpoint(str(tmp_path / "empty"), str(tmp_path / "none"))
    assert export_checkpoint(url, str(tmp_path / "out")).time == made.time, "it is left as it is"
    with pytest.raises(ExportError, match=r"newest holds another export, of step-000000000002-000001"):
        export_checkpoint(url, str(tmp_path / "newest"), step=1)


class Noted(nn.Linear):
    """Keeps what is no tensor."""

    @override
    def get_extra_state(self) -> Any:
        return {"note": "hello"}

    @override
    def set_extra_state(self, state: Any) -> None:
        assert state == {"note": "hello"}


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    saved(Noted(2, 2), str(tmp_path / "made"))
    with pytest.raises(ExportError, match=r"safetensors holds tensors alone, and _extra_state\.note is none"):
        export_checkpoint(str(tmp_path / "made"), str(tmp_path / "out"))
    with pytest.raises(ExportError, match="has no model under 'state', but train_state: name its key"):
        export_checkpoint(str(tmp_path / "made"), str(tmp_path / "out"), key="state")
    with pytest.raises(ValueError, match="max_file_bytes must be a number of bytes from 1 on, not 0"):
        export_checkpoint(str(tmp_path / "made"), str(tmp_path / "out"), max_file_bytes=0)


def test_another_model_or_tie_is_another_export(tmp_path: Path) -> None:
    folder, out = str(tmp_path / "made"), str(tmp_path / "out")
    models = {name: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for name in ("train_state", "averaged")}
    for model in models.values():
        model[1].weight = model[0].weight
    state = {name: TrainState(each, torch.optim.SGD(each.parameters())) for name, each in models.items()}
    checkpoints = Checkpoints(folder)
    checkpoints.load(state)
    checkpoints.save(1, state, wait=True)
    record = export_checkpoint(folder, out)
    assert export_checkpoint(folder, out) == record
    for options in ({"key": "averaged"}, {"tied": {"1.weight": "0.weight"}}):
        with pytest.raises(ExportError, match="holds another export, of step-000000000001-000001"):
            export_checkpoint(folder, out, **options)  # type: ignore[arg-type]  # either


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(Tied(), str(tmp_path / "made"), 1, 2)
    words = [str(tmp_path / "made"), str(tmp_path / "out"), "--tied", "head.weight=embedding.weight", "--step", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out == "exported step-000000000001-000001 parameters=63 files=1\n"
    assert main([str(tmp_path / "made"), str(tmp_path / "out")]) == 1
    assert "out holds another export" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, "--tied", "head.weight"])
    assert "must be NAME=HOLDER, got 'head.weight'" in capsys.readouterr().err
