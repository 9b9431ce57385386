"""What several tests of the agent begin with."""

import zipapp
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.unit.agent.operator_process import Operator, operating
from tests.unit.agent.place import AGENT


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zipapp, made as the image makes it."""
    made = tmp_path_factory.mktemp("agent") / "trainyard-agent"
    zipapp.create_archive(AGENT, made, "/usr/bin/env python3")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate(tmp_path)
    (tmp_path / "token").write_text("a.b.c\n")
    return tmp_path


@pytest.fixture
def operator(folder: Path) -> Iterator[Operator]:
    with operating(folder) as made:
        yield made
