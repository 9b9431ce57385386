"""An exported model is the one that was trained, in each format and from each parallelism, with its record; or there is none."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.library.support.equality import PLAN, Layer, transformer
from tests.library.support.processes import run
from trainyard_torch import (
    CheckpointError,
    Checkpoints,
    ExportError,
    Parallelism,
    Provenance,
    Store,
    StoreError,
    TrainState,
    export_model,
    load_weights,
    pipeline_stages,
    read_record,
    replicate,
    shard,
    tensor_parallel,
)
from trainyard_torch.export import formats, record as records
from trainyard_torch.export.environment import environment
from trainyard_torch.export.exporting import UNFINISHED

# Exporters warn of what they use themselves.
pytestmark = pytest.mark.filterwarnings("ignore")
ALL = ("torch", "safetensors", "torch.export", "onnx")


class Net(nn.Module):
    """With a buffer, a part that differs in training, and no forward that a script could not have."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 2)
        self.norm, self.drop = nn.BatchNorm1d(width), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu())) + bias


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


class Choosy(nn.Module):
    """What it does depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) if x.sum() > 0 else x


def net() -> Net:
    torch.manual_seed(3)
    made = Net()
    made(torch.randn(9, 3), torch.zeros(2))  # so that the buffers are no zeros
    return made


EXAMPLE = (torch.randn(4, 3), torch.randn(2))
DYNAMIC = {"x": {0: "batch"}}


def test_each_format_gives_what_the_model_does(tmp_path: Path) -> None:
    model, url = net(), str(tmp_path / "out")
    about = Provenance(configuration={"lr": 0.1}, data={"source": "numbers", "cursor": 40}, metrics={"loss": 0.5})
    record = export_model(model, url, formats=ALL, example_inputs=EXAMPLE, dynamic_shapes=DYNAMIC, provenance=about)
    assert model.training, "the model itself is as it was"
    x, bias = torch.randn(6, 3), torch.randn(2)
    model.eval()
    expected = model(x, bias)

    state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert list(state) == list(model.state_dict())
    from safetensors.torch import load_model  # noqa: PLC0415 - heavy, like those below

    for load in (
        lambda other: other.load_state_dict(state),
        lambda other: load_model(other, url + "/model.safetensors"),
    ):
        other = Net()
        load(other)
        assert torch.equal(other.eval()(x, bias), expected)
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    assert torch.allclose(program(x, bias), expected, atol=1e-6)
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(url + "/model.onnx", providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    (found,) = session.run(None, dict(zip(names, (x.numpy(), bias.numpy()), strict=True)))
    assert np.allclose(found, expected.detach().numpy(), atol=1e-5)

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "RECORD.json", "model.onnx", "model.pt", "model.pt2", "model.safetensors"
    ]  # fmt: skip
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1, "who may read one may read all"
    assert read_record(url, verify=True) == records.Record.parse(record.text())
    stored = json.loads((tmp_path / "out" / "RECORD.json").read_text())
    assert (stored["model"], stored["configuration"], stored["metrics"]) == (
        "Net",
        {"lr": 0.1},
        {"loss": 0.5},
    )
    assert stored["data"] == {"source": "numbers", "cursor": 40}
    assert stored["environment"]["torch"] == torch.__version__
    assert stored["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [4, 3], "dynamic": {"0": "batch"}}
    assert stored["parameters"] == sum(tensor.numel() for tensor in model.state_dict().values())


def test_onnx_of_a_model_torchs_exporter_supports(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import onnxruntime  # noqa: PLC0415

    words, model = torch.tensor([[1, 2], [5, 6], [0, 3]]), Tied()
    export_model(model, str(tmp_path / "out"), formats="onnx", example_inputs=words)
    assert not [message for message in caplog.messages if "the older one is used" in message]
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: words.numpy()})
    assert np.allclose(found, model(words).detach().numpy(), atol=1e-5)


def layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.children() if isinstance(module, Layer)]


def exported(folder: Path) -> None:
    """By ranks: the same model in each layout that so many processes can have."""
    world_size = dist.get_world_size()
    mesh = Parallelism().mesh(world_size, "cpu")
    export_model(
        replicate(transformer(), mesh), str(folder / "ddp"), formats=("torch", "torch.export"), example_inputs=TOKENS
    )
    model = transformer()
    shard(model, mesh, blocks=layers(model))
    export_model(
        model, str(folder / "fsdp"), model_factory=transformer, formats=("torch", "torch.export"), example_inputs=TOKENS
    )
    tensors = Parallelism(tensor=2).mesh(world_size, "cpu")
    model = tensor_parallel(transformer(), tensors, PLAN)
    if world_size == 4:
        shard(model, tensors, blocks=layers(model))
    export_model(model, str(folder / "tensor"), formats="safetensors")
    pipeline = Parallelism(pipeline=2).mesh(world_size, "cpu")
    own = pipeline_stages(transformer(), pipeline, stages_per_rank=2)
    if world_size == 4:
        own = [shard(stage, pipeline, blocks=layers(stage)) for stage in own]
    export_model(
        own,
        str(folder / "pipeline"),
        formats=("torch", "torch.export"),
        model_factory=transformer,
        example_inputs=TOKENS,
    )
    with pytest.raises(ExportError, match="this one is spread over processes: give model_factory"):
        export_model(own, str(folder / "none"), formats=("torch.export",), example_inputs=TOKENS)


TOKENS = torch.arange(12).reshape(2, 6) % 11


@pytest.mark.parametrize("world_size", [2, 4])
def test_from_each_parallelism(tmp_path: Path, world_size: int) -> None:
    run(world_size, tmp_path, exported, tmp_path)
    plain = transformer()
    expected = plain.state_dict()
    weights = set()
    for layout in ("ddp", "fsdp", "tensor", "pipeline"):
        record = read_record(str(tmp_path / layout), verify=True)
        assert record, layout
        weights.add(record.weights)
        assert record.environment["world_size"] == world_size
        if layout == "tensor":
            from safetensors.torch import load_file  # noqa: PLC0415

            found = load_file(tmp_path / layout / "model.safetensors")
        else:
            found = torch.load(tmp_path / layout / "model.pt", weights_only=True)
            program = torch.export.load(tmp_path / layout / "model.pt2").module()
            assert torch.allclose(program(TOKENS), plain(TOKENS))
        assert found.keys() == expected.keys(), layout
        assert all(torch.equal(found[name], expected[name]) for name in expected), layout
    assert len(weights) == 1, "whatever the layout, these are the same weights"
    assert not (tmp_path / "none").exists()


def tied(folder: Path) -> None:
    torch.manual_seed(1)
    model = Tied()
    if dist.get_world_size() > 1:
        shard(model, Parallelism().mesh(dist.get_world_size(), "cpu"), blocks=[])
    export_model(model, str(folder), formats=("torch", "safetensors"))


@pytest.mark.parametrize("world_size", [1, 2])
def test_tied_weights_stay_tied(tmp_path: Path, world_size: int) -> None:
    from safetensors.torch import load_file, load_model  # noqa: PLC0415

    run(world_size, tmp_path, tied, tmp_path / "out")
    record = read_record(str(tmp_path / "out"))
    assert record
    assert (record.tied, record.parameters) == ({"head.weight": "embedding.weight"}, 28)
    state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    assert list(load_file(tmp_path / "out" / "model.safetensors")) == ["embedding.weight"]
    model = Tied()
    load_model(model, tmp_path / "out" / "model.safetensors")
    torch.manual_seed(1)
    assert torch.equal(model.head.weight, Tied().head.weight)


def test_after_the_training_from_its_checkpoint(tmp_path: Path) -> None:
    """Without a process group, and without a word in the training's folder: it may still go on there."""
    url, model = str(tmp_path / "checkpoints"), net()
    checkpoints = Checkpoints(url)
    checkpoints.load(state := {"train_state": TrainState(model, torch.optim.AdamW(model.parameters()))})
    for step in (1, 2):
        with torch.no_grad():
            model.last.bias += 1
        checkpoints.save(step, state, data={"cursor": 8 * step}, metrics={"loss": 1 / step}, wait=True)
    before = sorted(tmp_path.rglob("*"))
    other = Net()
    manifest = load_weights(other, url)
    record = export_model(other, str(tmp_path / "out"), provenance=Provenance(checkpoint=manifest, checkpoints=url))
    assert all(
        torch.equal(*pair) for pair in zip(other.state_dict().values(), model.state_dict().values(), strict=True)
    )
    assert record.checkpoint == {"folder": url, "name": "step-000000000002-000001", "step": 2, "attempt": 1}
    assert (record.data, record.metrics) == ({"cursor": 16}, {"loss": 0.5})
    assert [path for path in sorted(tmp_path.rglob("*")) if (tmp_path / "out") not in (path, *path.parents)] == before
    load_weights(other, url, step=1)
    assert torch.allclose(other.last.bias, model.last.bias - 1)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of step 7 in .*: there are 1, 2"):
        load_weights(other, url, step=7)
    with pytest.raises(CheckpointError, match="name the folder that Checkpoints was given"):
        load_weights(other, str(tmp_path / "nothing"))


def test_in_an_object_store() -> None:
    from tests.library.support.s3 import options, serving  # noqa: PLC0415 - ranks import this file, and need no server

    with serving() as endpoint:
        where = options(endpoint)
        made = export_model(net(), "s3://bucket/models/1", formats=("torch", "safetensors"), **where)
        assert read_record("s3://bucket/models/1", verify=True, **where) == records.Record.parse(made.text())
        store = Store("s3://bucket/models/1", **where)
        assert sorted(store.files()) == ["RECORD.json", "model.pt", "model.safetensors"]
        store.write("model.pt", (store.read("model.pt") or b"")[:-9])
        with pytest.raises(ExportError, match=r"s3://bucket/models/1/model.pt has \d+ bytes instead of \d+"):
            read_record("s3://bucket/models/1", **where)


def test_what_is_there_already(tmp_path: Path) -> None:
    model, url = net(), str(tmp_path / "out")
    first = export_model(model, url, formats=("torch", "safetensors"))
    assert export_model(model, url).time == first.time, "the same weights: it is left as it is"
    with torch.no_grad():
        model.last.bias += 1
    with pytest.raises(ExportError, match=rf"{url} holds another export, of Net: name another folder, or remove it"):
        export_model(model, url)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.pt").write_text("precious")
    with pytest.raises(ExportError, match=r"mine holds model.pt and no export: name a folder of the export's own"):
        export_model(model, str(tmp_path / "mine"), formats="torch")
    assert (tmp_path / "mine" / "model.pt").read_text() == "precious"
    assert len(list((tmp_path / "mine").iterdir())) == 1


def test_one_that_was_broken_off_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, url, write = net(), str(tmp_path / "out"), Store.write

    def broken(store: Store, path: str, content: bytes) -> None:
        if path == records.NAME:
            raise StoreError("the power is gone")
        write(store, path, content)

    monkeypatch.setattr(Store, "write", broken)
    with pytest.raises(StoreError, match="the power is gone"):
        export_model(model, url)
    assert read_record(url) is None
    assert {path.name for path in (tmp_path / "out").iterdir()} == {UNFINISHED, "model.safetensors"}
    monkeypatch.undo()
    with torch.no_grad():
        model.last.bias += 1
    export_model(model, url)
    assert read_record(url, verify=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {records.NAME, "model.safetensors"}


@contextmanager
def little_room() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_no_room_leaves_nothing(tmp_path: Path, form: str) -> None:
    url = str(tmp_path / "out")
    with little_room(), pytest.raises(ExportError, match=rf"{formats.FILES[form]} cannot be written: "):  # type: ignore[index]
        export_model(Net(width=9000), url, formats=form)
    assert list((tmp_path / "out").iterdir()) == []


class Noted(Net):
    """Keeps what is no tensor."""

    def get_extra_state(self) -> Any:
        return {"note": "hello"}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"note": "hello"}


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Net()


def failing() -> nn.Module:
    raise OSError("no such weights")


@pytest.mark.parametrize(
    ("model", "more", "kind", "expected_text"),
    [
        (Choosy, {"formats": ("torch.export",), "example_inputs": torch.ones(2, 3)}, ExportError, "torch.export cannot follow the forward of Choosy: .*torch.cond"),
        (Noted, {}, ExportError, "safetensors holds tensors alone, and _extra_state is a dict: take the format torch"),
        (on_meta, {}, ExportError, "first.weight is on the meta device and has no values"),
        (Net, {"formats": ("pickle",)}, ValueError, "formats must be of torch, safetensors, torch.export, onnx, and has pickle"),
        (Net, {"formats": ()}, ValueError, "formats is empty: name one or more of torch"),
        (Net, {"formats": ("onnx",)}, ValueError, "example_inputs is missing: onnx need tensors to trace"),
        (Net, {"formats": ("onnx",), "example_inputs": (1, 2)}, ValueError, "example_inputs must be a tensor, or a tuple of tensors"),
        (Net, {"formats": ("onnx",), "example_inputs": 5}, ValueError, "example_inputs must be a tensor, or a tuple of tensors"),
        (list, {}, ValueError, "model is an empty list"),
        (Net, {"formats": ("onnx",), "example_inputs": (*EXAMPLE, EXAMPLE[0])}, ValueError, "example_inputs has 3 tensors, and forward of Net takes x, bias"),
        (Net, {"formats": ("onnx",), "example_inputs": EXAMPLE, "dynamic_shapes": {"y": {0: "n"}}}, ValueError, "dynamic_shapes names y, and example_inputs has x, bias"),
        (Net, {"formats": ("onnx",), "example_inputs": EXAMPLE, "dynamic_shapes": {"bias": {1: "n"}}}, ValueError, "bias has 1 dimensions, from 0 on, and no dimension 1"),
        (Net, {"formats": ("onnx",), "example_inputs": EXAMPLE, "dynamic_shapes": {"x": {0: "a b"}}}, ValueError, "dimension 0 of x needs a name such as batch, and has 'a b'"),
        (Net, {"formats": ("onnx",), "example_inputs": (EXAMPLE[0][:1], EXAMPLE[1]), "dynamic_shapes": DYNAMIC}, ValueError, "dimension 0 of x has size 1 in example_inputs"),
        (Net, {"formats": ("onnx",), "example_inputs": EXAMPLE, "model_factory": Tied}, ExportError, r"what model_factory\(\) makes is not the model that was trained: .*embedding"),
        (Net, {"formats": ("onnx",), "example_inputs": EXAMPLE, "model_factory": failing}, ExportError, r"model_factory\(\) failed: no such weights"),
        (Net, {"provenance": Provenance(configuration=7)}, ValueError, "configuration must be a mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_reported(
    tmp_path: Path, model: Callable[[], nn.Module], more: dict[str, Any], kind: type[Exception], expected_text: str
) -> None:
    with pytest.raises(kind, match=f"(?s){expected_text}"):
        export_model(model(), str(tmp_path / "out"), **more)
    assert read_record(str(tmp_path / "out")) is None
    assert not list(tmp_path.rglob("model.*"))


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda _: None)
    with pytest.raises(
        ExportError, match="onnx needs packages that are not installed: pip install onnx onnxscript, or leave"
    ):
        export_model(Net(), str(tmp_path / "out"), formats=("onnx",), example_inputs=EXAMPLE)


def test_a_place_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/out"):
        export_model(Net(), str(tmp_path / "file" / "out"))


@pytest.mark.gpu
def test_a_record_names_the_gpu() -> None:
    torch.zeros(1, device="cuda")
    assert environment({}, 1)["device"] == torch.cuda.get_device_name()
