"""Shard parameters, gradients and optimizer states over the data-parallel processes (FSDP2). The caller names the model's blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from trainyard_torch.mesh import sharding, size, submesh
from trainyard_torch.parallel.gradients import WHOLE_GRADIENTS
from trainyard_torch.parallel.sync_initial_parameters import sync_initial_parameters
from trainyard_torch.parallel.torch_compat import enable_fsdp_on_cpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

    from trainyard_torch.precision import Precision

M = TypeVar("M", bound=nn.Module)


def shard(  # noqa: PLR0913 - each is an option of FSDP2
    model: M,
    mesh: DeviceMesh,
    *,
    blocks: Iterable[nn.Module],
    reshard_after_forward: bool | None = None,
    cpu_offload: bool = False,
    precision: Precision | None = None,
    mixed_precision: MixedPrecisionPolicy | None = None,
    whole_gradients: bool = False,
) -> M:
    """Return the model with each parameter sharded over the data-parallel processes. Copies in the mesh are averaged (HSDP).

    The parameters become DTensors: create the optimizer afterwards. Call `tensor_parallel` before, not afterwards.
    Source: Zhao et al. 2023, PyTorch FSDP; Rajbhandari et al. 2020, ZeRO.

    Args:
        model: the model on this process's device, where the first process's values are used. If it is elsewhere, such as on the meta device,
                the caller must fill or synchronize it.
        mesh: the mesh of `Parallelism.mesh`.
        blocks: the modules that are gathered as units, such as the layers of a transformer. Other parameters are gathered with the model.
            Empty: the model is one unit, which saves memory only between steps.
        reshard_after_forward: True: a block is freed after its forward pass and gathered again for backward (ZeRO-3: 1.5 times the traffic).
            False: it is kept until then (ZeRO-2). None: False in a pipeline, which would gather it again for each micro-batch; else True.
        cpu_offload: whether parameters, gradients and optimizer states are in host memory. The process group then needs gloo for the CPU in
            addition to nccl ("cpu:gloo,cuda:nccl"), since the gradient norm is computed there.
        precision: the number format of the training. With one of 16 bits or fewer, parameters are gathered in 16 bits, which is half of the
            traffic, and gradients are averaged in fp32.
        mixed_precision: the types of computation and reduction, in place of `precision`. None: the parameters' own types. On CPUs, averages
            are computed in float64.
        whole_gradients: False: each micro-batch reduce-scatters its gradients, and a process keeps its part. True: a process keeps whole
            gradients until the last micro-batch, which alone communicates. That needs the memory of all parameters.

    Raises:
        ValueError: a block is not part of the model, has no forward, or is sharded already. Or two blocks share a parameter, there is
            nothing to offload from, or both `precision` and `mixed_precision` are given.
    """
    within = sharding(mesh)
    if cpu_offload and mesh.device_type == "cpu":
        raise ValueError(
            "cpu_offload moves parameters to the host's memory, and on a mesh of CPUs they are there already: leave it out"
        )
    chosen = _inner_first(model, list(blocks))
    reshards = size(mesh, "pipeline") == 1 if reshard_after_forward is None else reshard_after_forward
    policy = _policy(precision, mixed_precision)
    if mesh.device_type == "cpu":
        enable_fsdp_on_cpu()
        # Gloo refuses to average float32 and bfloat16, or silently sums them (pytorch issue 162338). FSDP itself divides float64.
        policy = replace(policy, reduce_dtype=torch.float64)
    # Copies that start from different values would stay different: only gradients are averaged.
    sync_initial_parameters(model, submesh(mesh, "gradients"))
    for module in (*chosen, model):
        fully_shard(
            module,
            mesh=within,
            reshard_after_forward=reshards,
            mp_policy=policy,
            # gpu-only: parameters in the memory of the host
            offload_policy=CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
        )
        if whole_gradients:
            WHOLE_GRADIENTS.add(cast("FSDPModule", module))
    return model


def _policy(precision: Precision | None, given: MixedPrecisionPolicy | None) -> MixedPrecisionPolicy:
    if precision and given:
        raise ValueError("precision makes a policy of its own: give either precision or mixed_precision")
    if precision and precision.dtype != torch.float32:
        return MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32)
    return given or MixedPrecisionPolicy()


def _inner_first(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Return the blocks in the order that FSDP needs: a nested block before the outer one."""
    names = {module: name for name, module in model.named_modules()}
    for block in blocks:
        if block is model or block not in names:
            raise ValueError(f"blocks: a {type(block).__name__} is not a part of the model")
        if isinstance(block, (nn.ModuleList, nn.ModuleDict)):
            raise ValueError(  # noqa: TRY004 - the list's value is wrong
                f"blocks: {names[block]} is a {type(block).__name__}, which has no forward: name the modules in it"
            )
    if len(set(blocks)) < len(blocks):
        raise ValueError("blocks: a module is there twice")
    if sharded := [name for module, name in names.items() if isinstance(module, FSDPModule)]:
        raise ValueError(f"{sharded[0] or 'the model'} is sharded already")
    _refuse_ties(model, {names[block] for block in blocks})
    return sorted(blocks, key=lambda block: -names[block].count("."))


def _refuse_ties(model: nn.Module, blocks: set[str]) -> None:
    owners: dict[nn.Parameter, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        block = name
        while block and block not in blocks:
            block = block.rpartition(".")[0]
        for parameter in module.parameters(recurse=False):
            if (other := owners.setdefault(parameter, block)) != block:
                raise ValueError(
                    f"one parameter is in both {other or 'the rest of the model'} and {block or 'the rest of the model'} "
                    "(tied weights): put both into one block, or leave both out"
                )
