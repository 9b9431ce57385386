"""These run where torch is: `make library-test` runs them in the trainer image, `make test-gpu` those that need a GPU where there is one."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*"]
OF_TORCH = (
    # 2.6 on Python 3.13, when its communication hooks are imported.
    "functools.partial will be a method descriptor:FutureWarning",
    "TypedStorage is deprecated:UserWarning",
    "torch.distributed is (disabled, )?unavailable or uninitialized:UserWarning",
)
"""What it warns of that only torch can fix."""


def pytest_configure(config: pytest.Config) -> None:
    for warning in OF_TORCH:
        config.addinivalue_line("filterwarnings", f"ignore:{warning}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test with the mark `gpu` is skipped where there are not as many, or not such ones."""
    if (mark := item.get_closest_marker("gpu")) and (reason := lacks(**mark.kwargs)):
        pytest.skip(reason)


def lacks(count: int = 1, capability: tuple[int, int] = (0, 0)) -> str:
    """Why this machine is none for a test that needs so many GPUs of this compute capability; "" where it is one."""
    import torch  # noqa: PLC0415 - where there is none, nothing is collected

    found = torch.cuda.device_count()
    if found < count:
        return f"needs {count} {'GPU' if count == 1 else 'GPUs'}, and this machine has {found or 'none'}"
    if (has := torch.cuda.get_device_capability()) < capability:
        return f"needs a GPU of compute capability {capability[0]}.{capability[1]}, and this one has {has[0]}.{has[1]}"
    return ""
