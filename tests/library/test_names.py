"""What the package promises by name is there, and nothing is imported before it is asked for."""

import subprocess
import sys

import pytest

import trainyard_torch


def test_each_name_is_there() -> None:
    assert {getattr(trainyard_torch, name).__class__ for name in trainyard_torch.__all__}
    assert set(trainyard_torch.__all__) == set(trainyard_torch._MODULES)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="trainyard_torch has no Trainer: it has LAMB"):
        _ = trainyard_torch.Trainer


def test_the_package_by_itself_needs_no_torch() -> None:
    code = "import sys, trainyard_torch; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
