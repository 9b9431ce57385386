"""The agent runs in any image with Python 3.9 or newer, without other packages."""

import ast
import sys
from pathlib import Path

import pytest

from tests.unit.agent.worker_environment import AGENT_SOURCE

OTHERS = {"preflight_rank.py": {"torch"}}
"""It does nothing in an image without torch."""
FILES = sorted(AGENT_SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_agent_needs_only_python_39_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(name).partition(".")[0] for name in imported} <= sys.stdlib_module_names | {
        "trainyard_agent",
        "trainyard_jax",
        "trainyard_stacks",
        *OTHERS.get(path.name, ()),
    }
