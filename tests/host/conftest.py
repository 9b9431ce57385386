"""These tests own the one cluster of the machine: they fail where one is up, and leave none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from dev.localcluster import network
from dev.localcluster.tools import ensure
from tests.host.machine import host_snapshot, localcluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.fail("host tests need root: run them with sudo")
    if network.owner() is not None:
        pytest.fail("a local cluster is up, and these tests need the machine for their own: `localcluster down` first")
    ensure()
    yield
    localcluster("down")


@pytest.fixture(scope="session")
def pristine(machine: None) -> dict[str, Any]:
    return host_snapshot()
