"""The agent hears when torch compiles, so that it takes no compilation for a hang."""

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from trainyard_torch.monitoring.compile_phase import CALLBACKS, CompilePhase

if TYPE_CHECKING:
    from collections.abc import Callable


class Agent:
    """The agent's package, with what was reported."""

    def __init__(self, phase: str | None = "train") -> None:
        self.reported: list[str] = [phase] if phase else []

    def phase(self) -> str | None:
        return self.reported[-1] if self.reported else None

    def progress(self, *, phase: str) -> None:
        self.reported.append(phase)


class Handler:
    """torch's lists of callbacks."""

    def __init__(self) -> None:
        self.starts: list[Callable[..., None]] = []
        self.ends: list[Callable[..., None]] = []
        self.register_start_callback, self.register_end_callback = self.starts.append, self.ends.append
        self.remove_start_callback, self.remove_end_callback = self.starts.remove, self.ends.remove


@pytest.fixture
def torch_callbacks(monkeypatch: pytest.MonkeyPatch) -> Handler:
    module, handler = ModuleType(CALLBACKS), Handler()
    module.callback_handler = handler  # type: ignore[attr-defined]  # as torch's has
    monkeypatch.setitem(sys.modules, CALLBACKS, module)
    return handler


def test_compilation_within_a_step_is_reported(torch_callbacks: Handler) -> None:
    agent = Agent()
    made = CompilePhase(agent)
    made.register()
    # Newer releases of torch pass details.
    torch_callbacks.starts[0](SimpleNamespace(compile_id="0/0"))
    assert agent.reported == ["train", "compile"]
    torch_callbacks.ends[0]()
    assert agent.reported == ["train", "compile", "train"]


def test_nested_compilations_are_one() -> None:
    agent = Agent("evaluate")
    made = CompilePhase(agent)
    for act in (made.begin, made.begin, made.end):
        act()
    assert agent.reported == ["evaluate", "compile"]
    made.end()
    made.end()
    assert agent.reported == ["evaluate", "compile", "evaluate"], "one end too many is none"
    made.begin()
    assert agent.reported[-1] == "compile"


def test_phase_that_the_program_reports_meanwhile_stays() -> None:
    agent = Agent()
    made = CompilePhase(agent)
    made.begin()
    agent.progress(phase="checkpoint")
    made.end()
    assert agent.reported == ["train", "compile", "checkpoint"]


def test_silent_rank_stays_silent() -> None:
    agent = Agent(None)
    made = CompilePhase(agent)
    made.begin()
    made.end()
    assert agent.reported == []


def test_registers_once_torch_has_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, CALLBACKS, raising=False)
    made = CompilePhase(Agent())
    made.register()
    assert made.is_pending
    module, handler = ModuleType(CALLBACKS), Handler()
    module.callback_handler = handler  # type: ignore[attr-defined]  # as torch's has
    monkeypatch.setitem(sys.modules, CALLBACKS, module)
    made.register()
    made.register()
    assert (made.is_pending, len(handler.starts), len(handler.ends)) == (False, 1, 1)
    made.close()
    assert (handler.starts, handler.ends) == ([], [])


def test_close_after_torch_forgot_its_callbacks(torch_callbacks: Handler) -> None:
    made = CompilePhase(Agent())
    made.register()
    torch_callbacks.starts.clear()
    torch_callbacks.ends.clear()
    made.close()
    made.register()
    assert torch_callbacks.starts == []


@pytest.mark.parametrize("agent", [None, SimpleNamespace(progress=print)], ids=["none", "an older one"])
def test_agent_without_a_phase_is_left_alone(agent: object, torch_callbacks: Handler) -> None:
    made = CompilePhase(agent)
    made.register()
    assert not made.is_pending
    assert torch_callbacks.starts == []
