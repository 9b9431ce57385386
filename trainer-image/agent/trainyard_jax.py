"""Observe JAX in a rank: the group that its processes form, and the step after which they stop together.

`sitecustomize.py` calls it when a program imports one of these modules of JAX. Names of JAX that have changed leave the program
unobserved.
"""

from __future__ import annotations

import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GROUP, BACKEND, STOP = "jax._src.distributed", "jax._src.xla_bridge", "jax.experimental.multihost_utils"


def watch(observer: Any, module: Any) -> None:
    """Observe one of these modules, which was just imported."""
    {GROUP: watch_group, BACKEND: watch_backend, STOP: watch_stop}[module.__name__](observer, module)


def watch_group(observer: Any, module: Any) -> None:
    """Record the group that `jax.distributed.initialize` forms."""
    original = module.initialize

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        state = module.global_state
        quietly(lambda: observer.record_group(state.process_id, state.num_processes, formed=True))
        return made

    module.initialize = initialize


def watch_backend(observer: Any, module: Any) -> None:
    """Record a process that computes without a group: no other can join it any more.

    Only in a group of JAX. The ranks of another framework may use JAX for their data, each by itself.
    """
    original = module.backends

    @functools.wraps(original)
    def backends() -> Any:
        made = original()
        # Once is enough, and this is called often.
        module.backends = original
        # Read here, and not while a warm process imports JAX: the address is another one in each attempt.
        in_group = os.environ.get("JAX_COORDINATOR_ADDRESS")
        if in_group and getattr(getattr(sys.modules.get(GROUP), "global_state", None), "client", None) is None:
            quietly(lambda: observer.record_group(0, 1, formed=True))
        return made

    module.backends = backends


def watch_stop(observer: Any, module: Any) -> None:
    """Record the step after which all processes have to save. A program that asks again goes on with its work."""
    original = module.reached_preemption_sync_point
    stopping = False

    @functools.wraps(original)
    def reached_preemption_sync_point(step_id: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal stopping
        reached = original(step_id, *args, **kwargs)
        if reached or stopping:
            stopping = bool(reached)
            quietly(lambda: observer.record(stoppedAfter=int(step_id) if stopping else None))
        return reached

    module.reached_preemption_sync_point = reached_preemption_sync_point


def quietly(function: Any) -> None:
    """Call a function. Nothing that goes wrong here may reach the program."""
    try:  # noqa: SIM105 - contextlib is one more import for each program
        function()
    except Exception:  # noqa: BLE001, S110 - the program goes on unobserved
        pass
