"""What several tests of the agent begin with."""

import zipapp
from pathlib import Path

import pytest

from tests.unit.agent.place import AGENT


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zipapp, made as the image makes it."""
    made = tmp_path_factory.mktemp("agent") / "trainyard-agent"
    zipapp.create_archive(AGENT, made, "/usr/bin/env python3")
    return made
