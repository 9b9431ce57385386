"""These run where torch is: `make library-test` runs them in the trainer image."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*"]
OF_TORCH = (
    # 2.6 on Python 3.13, when its communication hooks are imported.
    "functools.partial will be a method descriptor:FutureWarning",
    "TypedStorage is deprecated:UserWarning",
    "torch.distributed is unavailable or uninitialized:UserWarning",
)
"""What it warns of that nobody but torch can mend."""


def pytest_configure(config: pytest.Config) -> None:
    for warning in OF_TORCH:
        config.addinivalue_line("filterwarnings", f"ignore:{warning}")
