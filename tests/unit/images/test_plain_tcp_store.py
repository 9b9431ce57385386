"""The cure of a torch without libuv, on the text that it edits."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "trainer-image" / "plain_tcp_store.py"

TORCH = """
if is_available():
    from torch._C._distributed_c10d import (
        PrefixStore,
        TCPStore,
        Work as _Work,
    )

    LATER = TCPStore
"""


@pytest.fixture(scope="module")
def cure() -> ModuleType:
    module = ModuleType("plain_tcp_store")
    exec(compile(SCRIPT.read_text(), str(SCRIPT), "exec"), module.__dict__)  # noqa: S102 - a script, in no package
    return module


class NativeStore:
    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args, self.kwargs = args, kwargs


@pytest.mark.parametrize("asked", [{}, {"use_libuv": True}, {"use_libuv": False}])
def test_every_store_is_plain_whatever_was_asked_for(cure: ModuleType, asked: dict[str, bool]) -> None:
    patched = cure.with_plain_store(TORCH)
    runnable = patched.replace("from torch._C._distributed_c10d import (", "TCPStore, = (").replace(
        "        PrefixStore,\n        TCPStore,\n        Work as _Work,\n", "        NativeStore,\n"
    )
    names: dict[str, Any] = {"is_available": lambda: True, "NativeStore": NativeStore}
    exec(compile(runnable, "torch/distributed/__init__.py", "exec"), names)  # noqa: S102 - the edited text is what is tested
    store = names["LATER"]("localhost", 29500, timeout=30, **asked)
    assert isinstance(store, NativeStore)
    assert store.args == ("localhost", 29500)
    assert store.kwargs == {"timeout": 30, "use_libuv": False}


@pytest.mark.parametrize("text", ["", "import torch\n", TORCH.replace("        TCPStore,\n", "")])
def test_a_torch_of_another_shape_stops_the_build(cure: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="does not import TCPStore"):
        cure.with_plain_store(text)
