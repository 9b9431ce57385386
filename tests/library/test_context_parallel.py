"""Sequences that are cut over processes: what is refused, and what the tensors are inside and afterwards."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tests.library.support.processes import run
from trainyard_torch import context_parallel, shard, tensor_parallel
from trainyard_torch.mesh import Parallelism, data_shard, sharding, submesh
from trainyard_torch.parallel.context_parallel import split_sequences

if TYPE_CHECKING:
    from pathlib import Path


def cut() -> list[Any]:
    """What tensors hold inside and afterwards: one as it was, one that is not restored, and one that requires a gradient inside."""
    mesh = Parallelism(context=2).mesh(2, "cpu")
    plain, consumed, marked = (torch.arange(8.0) + 10 * number for number in range(3))
    with split_sequences(mesh, [plain, consumed, marked], [0, 0, 0], [consumed]):
        inside = [each.tolist() for each in (plain, consumed, marked)]
        (marked.requires_grad_() ** 2).sum().backward()
    return [inside, [each.tolist() for each in (plain, consumed, marked)], marked.requires_grad]


def test_tensors_are_cut_and_restored(tmp_path: Path) -> None:
    # The first and the last quarter are as much work in causal attention as the two in the middle.
    parts = [[0.0, 1.0, 6.0, 7.0], [2.0, 3.0, 4.0, 5.0]]
    for part, (inside, after, requires_grad) in zip(parts, run(2, tmp_path, cut), strict=True):
        assert inside == [[value + 10 * number for value in part] for number in range(3)]
        assert after[0] == [float(value) for value in range(8)]
        assert after[1] == inside[1], "it stays as it was inside"
        assert after[2] == [float(value + 20) for value in range(8)]
        assert not requires_grad, "as before"


def refused() -> list[str]:
    mesh, plain = Parallelism(context=2).mesh(2, "cpu"), torch.zeros(1, 8)
    errors = []
    for tensors, kept in (
        ([torch.zeros(1, 8, requires_grad=True)], []),
        ([plain * torch.ones(1, requires_grad=True)], []),
        ([plain], [torch.zeros(1, 8)]),
    ):
        with pytest.raises(ValueError) as error, context_parallel(mesh, tensors, [1], no_restore_buffers=kept):  # noqa: PT011 - the test looks at the words
            pass
        errors.append(str(error.value))
    return errors


def test_tensors_with_gradients_are_refused(tmp_path: Path) -> None:
    leaf, computed, foreign = run(2, tmp_path, refused)[0]
    assert leaf == computed
    assert leaf.startswith("tensor 0 requires a gradient, and tensors are split in place")
    assert foreign == "no_restore_buffers: a tensor is there that is not one of tensors"


def all_dimensions(tensor: int) -> tuple[list[list[int]], float, list[str]]:
    """Copies of shards, cut sequences and matrices in one mesh: which ranks share parameters, the error of gradients, and torch's warnings."""
    torch.manual_seed(1)
    model, tokens = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).double(), torch.randn(4, 8, 4, dtype=torch.float64)
    wanted = torch.autograd.grad(model(tokens).square().mean(), list(model.parameters()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mesh = Parallelism(replicate=2, context=2, tensor=tensor).mesh(8, "cpu")
        tensor_parallel(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        shard(model, mesh, blocks=[model[0]])
        data, sequences = data_shard(mesh), submesh(mesh, "context")
    own = tokens.chunk(data.world_size, 0)[data.rank].chunk(2, 1)[sequences.get_local_rank()]
    model(own).square().mean().backward()
    gradients = [parameter.grad.full_tensor() for parameter in model.parameters() if parameter.grad is not None]
    wrong = max(float((a - b).abs().max()) for a, b in zip(gradients, wanted, strict=True))
    # On CPUs, torch warns of random numbers, which this model does not draw.
    texts = [text for each in caught if "random operators" not in (text := str(each.message))]
    return sharding(mesh).mesh.tolist(), wrong, texts


def both_meshes() -> list[tuple[list[list[int]], float, list[str]]]:
    return [all_dimensions(tensor) for tensor in (1, 2)]


def test_copies_of_shards_with_cut_sequences(tmp_path: Path) -> None:
    found = run(8, tmp_path, both_meshes)
    assert found[0][0][0] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [each[1][0] for each in found[:2]] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    for ranks in found:
        for _, wrong, warned in ranks:
            assert wrong < 1e-12
            assert warned == []
