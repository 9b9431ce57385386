"""Load the values of a checkpoint that are no tensors, as data: torch refuses whatever needs code that the file names."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.serialization import safe_globals
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.checkpoint.planner import ReadItem

LEAST_TORCH = (2, 6)
"""Until 2.5, `weights_only=True` could be made to run code (CVE-2025-32434)."""
_ALONE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class UnsafeValueError(ValueError):
    """A value can only be restored by code. The message names it, and the fix."""


class UnsafeTorchError(Exception):
    """This torch cannot load a file without running code that the file brings. A restart does not help."""

    exit_code = 93


def check_torch(version: str) -> None:
    """Raise UnsafeTorchError if this release of torch cannot load files safely."""
    if tuple(int(each) for each in version.split(".")[:2]) < LEAST_TORCH:
        raise UnsafeTorchError(
            f"torch {version} may run code from a file that it loads (CVE-2025-32434): use torch 2.6 or later"
        )


class PlainLoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]  # torch is there where this runs
    """torch's planner, which loads values as data. torch's own runs any code that a value names."""

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        *above, last = self.mappings[name]
        place = self.original_state_dict
        for key in above:
            place = place[key]
        place[last] = load_value(value, name)


def load_value(stream: io.BytesIO, name: str) -> Any:
    """Return what `torch.save` wrote. Raises UnsafeValueError if only code could restore it."""
    try:
        with safe_globals(_numpy()):
            return torch.load(stream, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeValueError(
            f"{name} is an object that only code can restore: store plain values, or allow its class in this program by "
            f"torch.serialization.add_safe_globals ({_refused(error)})"
        ) from None


def check_loadable(state: Mapping[str, Any]) -> None:
    """Check that each value of a state dict can be loaded again.

    Raises:
        UnsafeValueError: `load_value` would refuse one.
    """
    for name, value in state.items():
        _check(value, str(name))


def _check(value: Any, name: str) -> None:
    if isinstance(value, torch.Tensor) or type(value) in _ALONE:
        return
    if type(value) in {dict, OrderedDict}:
        for key, each in value.items():
            _check(each, f"{name}.{key}")
    elif type(value) in {list, tuple}:
        for number, each in enumerate(value):
            _check(each, f"{name}.{number}")
    else:
        stream = io.BytesIO()
        torch.save(value, stream)
        stream.seek(0)
        load_value(stream, name)


def _numpy() -> list[Any]:
    """Return what arrays and numbers of numpy are restored by: generators of random numbers have them in their state."""
    import numpy as np  # noqa: PLC0415 - only where there are values

    number, array = np.float64(0), np.zeros(1)
    kinds = {type(np.dtype(each)) for each in "?bBhHiIlLqQefdFDSU"}
    return [number.__reduce__()[0], array.__reduce__()[0], np.ndarray, np.dtype, *kinds]


def _refused(error: Exception) -> str:
    """Return the line of torch's message that names the class."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if "nsupported" in line), lines[0] if lines else type(error).__name__)
