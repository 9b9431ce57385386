"""Whether a worker has GPUs."""

from pathlib import Path

import pytest

from trainyard_agent.gpu import DEVICES, has_gpu


@pytest.mark.parametrize(("requested", "has"), [("8", True), ("10", True), ("0", False), ("", False), ("many", False)])
def test_requested_accelerators(requested: str, tmp_path: Path, *, has: bool) -> None:
    assert has_gpu({"TRAINYARD_ACCELERATORS_PER_REPLICA": requested}, tmp_path) is has


@pytest.mark.parametrize("device", DEVICES)
def test_devices_of_a_resource_claim(device: str, tmp_path: Path) -> None:
    assert not has_gpu({}, tmp_path)
    (tmp_path / device).parent.mkdir()
    (tmp_path / device).touch()
    assert has_gpu({}, tmp_path)
