"""Fixtures of the agent's tests."""

import zipapp
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.unit.agent.fake_operator import FakeOperator, serve_operator
from tests.unit.agent.worker_environment import AGENT_SOURCE


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the zipapp as the image does."""
    made = tmp_path_factory.mktemp("agent") / "trainyard-agent"
    zipapp.create_archive(AGENT_SOURCE, made, "/usr/bin/env python3")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate(tmp_path)
    (tmp_path / "token").write_text("a.b.c\n")
    return tmp_path


@pytest.fixture
def operator(folder: Path) -> Iterator[FakeOperator]:
    with serve_operator(folder) as made:
        yield made
