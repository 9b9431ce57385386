"""Fixtures for tests that need a fake API server: import them in a conftest.py."""

from collections.abc import AsyncIterator

import pytest

from tests.support.fake_api import FakeApi
from tests.support.timers import FakeTimers


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


@pytest.fixture
def timers() -> FakeTimers:
    return FakeTimers()
