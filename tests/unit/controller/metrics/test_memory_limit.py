"""The memory limit of the operator's container."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.main import process_registry
from trainyard.controller.metrics.memory_limit import register_memory_limit

METRIC = "trainyard_memory_limit_bytes"


@pytest.mark.parametrize(
    ("content", "limit"), [(b"1073741824\n", 2**30), (b"max\n", 0), (b"", 0), (b"\xff", 0), (None, 0)]
)
def test_limit_is_read_from_the_cgroup(tmp_path: Path, content: bytes | None, limit: int) -> None:
    file, registry = tmp_path / "memory.max", CollectorRegistry()
    if content is not None:
        file.write_bytes(content)
    register_memory_limit(registry, file)
    assert registry.get_sample_value(METRIC) == limit


def test_process_exports_its_memory_limit() -> None:
    assert process_registry().get_sample_value(METRIC) is not None
