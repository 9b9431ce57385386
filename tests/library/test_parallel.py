"""Each technique by itself: what it refuses, and what equality with one process does not show."""

from __future__ import annotations

from itertools import product
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everywhere
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.library.support.models import layers
from tests.library.support.processes import run
from tests.library.support.programs import started
from trainyard_torch import (
    Pipeline,
    clip_grad_norm_,
    context_parallel,
    gradient_sync,
    group_by_mesh,
    pipeline_stages,
    replicate,
    shard,
    tensor_parallel,
)
from trainyard_torch.data import DataShard
from trainyard_torch.mesh import Parallelism, data_shard, sharding, size, submesh
from trainyard_torch.parallel.pipeline import cuts

if TYPE_CHECKING:
    from collections.abc import Callable


def places() -> tuple[DataShard, dict[str, list[int]]]:
    mesh = Parallelism(tensor=2, replicate=2).mesh(4, "cpu")
    names = ("pipeline", "replicate", "shard", "context", "tensor", "data", "shards", "gradients")
    assert [size(mesh, name) for name in names] == [submesh(mesh, name).size() for name in names]
    return data_shard(mesh), {name: submesh(mesh, name).mesh.flatten().tolist() for name in names}


def test_neighbours_share_a_matrix_and_the_same_samples(tmp_path: Path) -> None:
    found = run(4, tmp_path, places)
    assert [own for own, _ in found] == [DataShard(0, 2), DataShard(0, 2), DataShard(1, 2), DataShard(1, 2)]
    own = found[3][1]
    assert (own["tensor"], own["data"], own["gradients"], own["shards"]) == ([2, 3], [1, 3], [1, 3], [3])


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


def refusals() -> dict[str, str]:
    """The error of each wrong call."""
    errors = {}

    def refused(name: str, call: Callable[[], Any]) -> None:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the test looks at the words
            call()
        errors[name] = str(error.value)

    tensor, pipeline, context, data = (
        Parallelism(**sizes).mesh(2, "cpu") for sizes in ({"tensor": 2}, {"pipeline": 2}, {"context": 2}, {})
    )
    refused("world", lambda: Parallelism().mesh(4, "cpu"))
    refused(
        "foreign mesh", lambda: size(dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)), "data")
    )
    refused("no module", lambda: tensor_parallel(layers(), tensor, {"7": ColwiseParallel()}))
    refused("tied to what is whole", lambda: tensor_parallel(tied(), tensor, {"0": ColwiseParallel()}))
    refused(
        "tied and split in two ways",
        lambda: tensor_parallel(tied(), tensor, {"0": ColwiseParallel(), "1": RowwiseParallel()}),
    )
    refused("odd size", lambda: tensor_parallel(layers(), tensor, {"2": ColwiseParallel()}))
    refused("odd rows", lambda: tensor_parallel(layers(), tensor, {"3": RowwiseParallel()}))
    refused("no matrix", lambda: tensor_parallel(layers(), tensor, {"1": ColwiseParallel()}))
    refused(
        "matched twice", lambda: tensor_parallel(layers(), tensor, {"0": ColwiseParallel(), "*": RowwiseParallel()})
    )
    split = tensor_parallel(layers(), tensor, {"0": ColwiseParallel()})
    refused("DDP of a split one", lambda: replicate(split, tensor))
    refused("nothing to train", lambda: replicate(nn.Tanh(), data))
    refused("bucket", lambda: replicate(layers(), data, bucket_cap_mb=0))
    model = layers()
    refused("foreign block", lambda: shard(model, data, blocks=[layers()]))
    refused("block twice", lambda: shard(model, data, blocks=[model[0], model[0]]))
    listed = nn.ModuleList([layers()])
    refused("list for a block", lambda: shard(nn.Sequential(listed), data, blocks=[listed]))
    refused("offload", lambda: shard(model, data, blocks=[], cpu_offload=True))
    model[3].weight = model[2].weight
    refused("tied blocks", lambda: shard(model, data, blocks=[model[2], model[3]]))
    refused("tied to the rest", lambda: shard(model, data, blocks=[model[2]]))
    refused("tied stages", lambda: pipeline_stages(nn.Sequential(model[2], model[3]), pipeline))
    whole = shard(layers(), data, blocks=[])
    refused("sharded twice", lambda: shard(whole, data, blocks=[]))
    refused("few parts", lambda: pipeline_stages(layers(), pipeline, stages_per_rank=3))
    refused("no stages", lambda: pipeline_stages(layers(), pipeline, stages_per_rank=0))
    refused("no sequence of parts", lambda: pipeline_stages(layers()[0], pipeline))
    refused("few micro-batches", lambda: Pipeline([layers()], F.mse_loss, pipeline, n_microbatches=1))
    refused("odd micro-batches", lambda: Pipeline([layers(), layers()], F.mse_loss, pipeline, n_microbatches=3))
    refused("empty pipeline", lambda: Pipeline([], F.mse_loss, pipeline, n_microbatches=2))
    pipe = Pipeline(pipeline_stages(layers(), pipeline), F.mse_loss, pipeline, n_microbatches=2)
    refused("odd samples", lambda: pipe.step(torch.zeros(3, 4), torch.zeros(3, 4)))
    refused("no samples", lambda: pipe.step(torch.zeros(0, 4), torch.zeros(0, 4)))
    refused("targets", lambda: pipe.step(torch.zeros(4, 4), torch.zeros(2, 4)))
    pipe.step(torch.zeros(4, 4), torch.zeros(4, 4))
    refused("other samples", lambda: pipe.step(torch.zeros(2, 4), torch.zeros(2, 4)))
    refused("length", lambda: context_parallel(context, [torch.zeros(2, 6)], [1]).__enter__())
    refused("dimension", lambda: context_parallel(context, [torch.zeros(2, 8)], [2]).__enter__())
    refused("dimensions", lambda: context_parallel(context, [torch.zeros(2, 8)], []).__enter__())
    refused("attention on CPUs", lambda: context_parallel(context, [torch.zeros(2, 8)], [1]).__enter__())
    refused("max_norm", lambda: clip_grad_norm_([], data, 0))
    refused("norm", lambda: clip_grad_norm_([], data, 1, norm_type=nan))
    return errors


WORDS = {
    "world": "a mesh of 4 processes needs a process group of as many, and this one has 2",
    "foreign mesh": "has no replicate or shard, only dp",
    "no module": "no module is named '7'; there are 0, 1, 2",
    "tied to what is whole": "0 and 1 share a parameter .tied weights.: name both, or neither",
    "tied and split in two ways": "0 and 1 share a parameter .tied weights., which would be split in different ways",
    "odd size": "out_features of 2 is 3, which the tensor degree 2 does not divide",
    "odd rows": "in_features of 3 is 3",
    "no matrix": "1 is a Tanh, and ColwiseParallel takes",
    "matched twice": "0 is matched by both '0' and '*'",
    "DDP of a split one": "spread over processes .0.weight.: use shard",
    "nothing to train": "no parameter of the model is to be trained",
    "bucket": "bucket_cap_mb must be positive",
    "foreign block": "a Sequential is not a part of the model",
    "block twice": "a module is there twice",
    "list for a block": "0 is a ModuleList, which has no forward",
    "offload": "they are there already",
    "tied blocks": "one parameter is in both 2 and 3",
    "tied to the rest": "one parameter is in both 2 and the rest of the model",
    "tied stages": "stages 0 and 1 share the parameter 1.weight",
    "sharded twice": "the model is sharded already",
    "few parts": "4 parts cannot be cut into 6 stages",
    "no stages": "stages_per_rank must be from 1 on, not 0",
    "no sequence of parts": "a Linear cannot be cut into stages",
    "few micro-batches": "1 micro-batches are too few for 2 processes",
    "odd micro-batches": "a multiple of 2 micro-batches",
    "empty pipeline": "one stage at least",
    "odd samples": "3 samples cannot be cut into 2 equal micro-batches",
    "no samples": "0 samples cannot be cut",
    "targets": "inputs are 4 samples, and target 2",
    "other samples": "this step has 2 samples, and the first had 4",
    "length": "6 long, which twice the context degree, 4,",
    "dimension": "has 2 dimensions, and no dimension 2",
    "dimensions": "1 tensors have 0 dimensions here",
    "attention on CPUs": "context parallel needs GPUs",
    "max_norm": "max_norm must be positive",
    "norm": "norm_type must be from 1 on",
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run(2, tmp_path_factory.mktemp("errors"), refusals)[1]


@pytest.mark.parametrize("name", WORDS)
def test_what_cannot_work_is_refused(name: str, errors: dict[str, str]) -> None:
    assert errors.keys() == WORDS.keys()
    with pytest.raises(ValueError, match=WORDS[name]):
        raise ValueError(errors[name])


@pytest.mark.parametrize(
    ("sizes", "count", "ends"),
    [([1, 1, 1, 1], 2, [2, 4]), ([9, 1, 1, 1], 2, [1, 4]), ([0, 0, 5], 3, [1, 2, 3]), ([2, 3, 4, 5, 6], 3, [2, 4, 5])],
)
def test_stages_are_as_even_as_their_order_allows(sizes: list[int], count: int, ends: list[int]) -> None:
    found = cuts(sizes, count)
    heaviest = [max(sum(sizes[a:b]) for a, b in zip([0, *e[:-1]], e, strict=True)) for e in (found, ends)]
    assert (len(found), found[-1], heaviest[0]) == (count, len(sizes), heaviest[1])
    assert all(a < b for a, b in zip([0, *found], found, strict=False))


def nested() -> list[float]:
    """The gradient of weights that are tied within a block that holds another one, the outer one named first."""
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Linear(1, 1)))
    model[0][1].weight = model[0][0].weight
    with torch.no_grad():
        model[0][0].weight.fill_(3)
        model[0][2].weight.fill_(1)
    shard(model, Parallelism().mesh(2, "cpu"), blocks=[model[0], model[0][2]])(torch.ones(1, 1)).sum().backward()
    return [float(parameter.grad.full_tensor()) for parameter in model.parameters()]


def test_blocks_may_hold_others_and_tied_weights(tmp_path: Path) -> None:
    assert run(2, tmp_path, nested) == [[6, 9, 1]] * 2


def both_exchanged() -> list[list[list[float]]]:
    return [exchanged("replicate"), exchanged("shard")]


def exchanged(technique: str) -> list[list[float]]:
    """The gradients after a backward pass without exchange, and after one with it."""
    mesh = Parallelism().mesh(2, "cpu")
    model = nn.Linear(2, 1, bias=False)
    wrapped = replicate(model, mesh) if technique == "replicate" else shard(model, mesh, blocks=[])
    found = []
    for yes in (False, True):
        with gradient_sync(nn.Sequential(wrapped), yes):
            wrapped(torch.ones(1, 2) * (dist.get_rank() + 1)).sum().backward()
        gradient = model.weight.grad
        if gradient is not None:
            gradient = gradient.full_tensor() if technique == "shard" else gradient
        found.append([] if gradient is None else gradient.flatten().tolist())
    return found


def test_ddp_exchanges_gradients_last_and_fsdp_always(tmp_path: Path) -> None:
    # Gloo would add float32 where it is to average.
    fsdp = [[1.5, 1.5], [3, 3]]
    assert run(2, tmp_path, both_exchanged) == [[[[1, 1], [3, 3]], fsdp], [[[2, 2], [3, 3]], fsdp]]


def seeded() -> list[bool]:
    """Whether models that each rank has made by itself are rank 0's afterwards."""
    wanted = layers()
    found = []
    for sizes in (Parallelism(), Parallelism(replicate=2), Parallelism(tensor=2)):
        mesh = sizes.mesh(2, "cpu")
        model = layers()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(dist.get_rank())
        model = tensor_parallel(model, mesh, {"0": ColwiseParallel()})
        model = shard(model, mesh, blocks=[model[2]])
        whole = [parameter.full_tensor() for parameter in model.parameters()]
        # As another rank sees it: full_tensor asks none of those that hold a copy.
        errors: list[Any] = [None, None]
        dist.all_gather_object(errors, whole)
        found.append(all(torch.equal(a, b) for own in errors for a, b in zip(own, wanted.parameters(), strict=True)))
    return found


def test_copies_begin_alike_however_they_were_seeded(tmp_path: Path) -> None:
    assert run(2, tmp_path, seeded) == [[True] * 3] * 2


def quarters(technique: str, copies: int) -> list[list[float]]:
    """Gradients of a model that looks at each token by itself: each rank with half of the samples, and half of each sequence."""
    mesh = Parallelism(context=2, replicate=copies).mesh(4, "cpu")
    model = layers().double()
    torch.manual_seed(1)
    tokens = torch.randn(6, 8, 4, dtype=torch.float64)
    wanted = torch.autograd.grad(model(tokens).square().mean(), list(model.parameters()))
    wrapped = replicate(model, mesh) if technique == "replicate" else shard(model, mesh, blocks=[model[0]])
    own = tokens.chunk(2, 0)[data_shard(mesh).rank].chunk(2, 1)[submesh(mesh, "context").get_local_rank()]
    wrapped(own).square().mean().backward()
    found = [parameter.grad for parameter in model.parameters()]
    if technique == "shard":
        assert sharding(mesh).size() == submesh(mesh, "gradients").size() == 4
        found = [gradient.full_tensor() for gradient in found]
    return [[float((a - b).abs().max()), float(b.abs().max())] for a, b in zip(found, wanted, strict=True)]


def accumulated(words: dict[str, int], *, whole: bool) -> tuple[list[int], list[list[float]]]:
    """The gradients in the memory of this process after the first of two micro-batches, in numbers, and all of them after the second."""
    mesh, inputs = Parallelism(**words).mesh(dist.get_world_size(), "cpu"), torch.arange(32.0).reshape(8, 4) / 32
    torch.manual_seed(0)
    model = shard(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), mesh, blocks=[], whole_gradients=whole)
    kept = list[int]()
    for last in (False, True):
        with gradient_sync(model, last):
            model(inputs[dist.get_rank() * 2 :][:2] + last).sum().backward()
        kept = kept or [each.grad.to_local().numel() if each.grad is not None else 0 for each in model.parameters()]
    return kept, [each.grad.full_tensor().flatten().tolist() for each in model.parameters() if each.grad is not None]


def both_ways(words: dict[str, int]) -> list[Any]:
    return [accumulated(words, whole=whole) for whole in (False, True)]


@pytest.mark.parametrize("words", [{}, {"replicate": 2}], ids=["shards", "copies of shards"])
def test_micro_batches_keep_only_parts_of_gradients(tmp_path: Path, words: dict[str, int]) -> None:
    for (kept, gradients), (kept_whole, same) in run(4, tmp_path, both_ways, words):
        assert kept_whole == [0, 0, 0, 0], "they are whole, and no part of a parameter yet"
        assert kept == ([0, 0, 0, 0] if words else [8, 2, 8, 1])
        assert gradients == [pytest.approx(each) for each in same]


def all_quarters() -> list[list[list[float]]]:
    return [quarters(*words) for words in (("replicate", 1), ("shard", 1), ("shard", 2))]


def test_gradients_are_averaged_over_samples_and_sequence(tmp_path: Path) -> None:
    for found in run(4, tmp_path, all_quarters):
        assert all(wrong < 1e-12 < large for differences in found for wrong, large in differences)


def lengths() -> list[Any]:
    """Norms over two stages whose gradients are 3 and 4, and what is left of them."""
    mesh = Parallelism(pipeline=2).mesh(2, "cpu")
    parameter, idle = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    found = []
    for longest, norm in ((1.0, 2.0), (inf, 2.0), (2.0, inf), (70.0, 1.0)):
        parameter.grad = torch.tensor([3.0 + mesh["pipeline"].get_local_rank()])
        total = clip_grad_norm_([parameter, idle], mesh, longest, norm_type=norm)
        found.append((round(float(total), 6), round(float(parameter.grad), 4)))
    parameter.grad = torch.tensor([nan]) if dist.get_rank() else None
    return [*found, bool(clip_grad_norm_([parameter], mesh, 1.0).isnan())]


def test_gradient_norm_covers_all_stages(tmp_path: Path) -> None:
    assert run(2, tmp_path, lengths) == [
        [(5.0, 0.6), (5.0, 3.0), (4.0, 1.5), (7.0, 3.0), True],
        [(5.0, 0.8), (5.0, 4.0), (4.0, 2.0), (7.0, 4.0), True],
    ]


def clipped_unlike_torch() -> list[tuple[float, float, str]]:
    """The scales, limits and dtypes at which norm or gradients differ from those of torch's own function."""
    mesh, differ = Parallelism().mesh(1, "cpu"), []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for scale, longest in product((1e-9, 0.5, 0.99, 1.0, 1.01, 50.0, inf, nan), (1e-7, 1.0, inf)):
            mine = [nn.Parameter(torch.zeros(side, dtype=dtype)) for side in (3, 70)]
            for each in mine:
                each.grad = torch.randn_like(each) * scale / 8
            theirs = [nn.Parameter(torch.zeros_like(each)) for each in mine]
            for each, other in zip(mine, theirs, strict=True):
                other.grad = None if each.grad is None else each.grad.clone()
            norms = clip_grad_norm_(mine, mesh, longest), nn.utils.clip_grad_norm_(theirs, longest)
            pairs = [norms, *((each.grad, other.grad) for each, other in zip(mine, theirs, strict=True))]
            if not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs if one is not None):
                differ.append((scale, longest, str(dtype)))
    return differ


def test_clipping_equals_torch_to_the_bit(tmp_path: Path) -> None:
    assert run(1, tmp_path, clipped_unlike_torch) == [[]]


def grouped() -> tuple[str, int]:
    """An optimizer that takes many parameters at once fails with two kinds of them, and works with a group for each."""
    mesh = Parallelism(tensor=2).mesh(2, "cpu")
    model = tensor_parallel(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(RuntimeError) as error:
        torch.optim.AdamW(model.parameters(), foreach=True).step()
    groups = group_by_mesh(model.parameters())
    torch.optim.AdamW([{"params": group} for group in groups], foreach=True).step()
    return str(error.value), len(groups)


def test_optimizer_groups_plain_and_distributed_parameters(tmp_path: Path) -> None:
    for words, groups in run(2, tmp_path, grouped):
        assert "mixed torch.Tensor and DTensor" in words
        assert groups == 2


@pytest.mark.parametrize(("number", "world_size"), [(1, 4), (1, 1), (2, 4)])
def test_the_programs_of_the_page_run(number: int, world_size: int, tmp_path: Path) -> None:
    """As they stand there, by a launcher or alone."""
    page, program = Path("docs/training/parallelism.md").read_text(), tmp_path / "program.py"
    program.write_text(page.split("```python\n")[number].split("```")[0])
    chosen = '{"tensor":2,"pipeline":1,"context":1}' if world_size > 1 else ""
    with started(program, world_size, TRAINYARD_PARALLELISM=chosen) as ranks:
        output = [rank.communicate(timeout=120) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size, output
    assert all(0 < float(out.split("loss ")[1]) < 4 for out, _ in output)
