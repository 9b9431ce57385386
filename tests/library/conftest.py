"""These run where torch is: `make test-library` runs them in the trainer image."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    # torch 2.6's list of communication hooks under Python 3.13, at its import: nobody but torch can mend it.
    config.addinivalue_line("filterwarnings", "ignore:functools.partial will be a method descriptor:FutureWarning")
