"""Writes that need a permit: one for each, with a deadline."""

import asyncio

import pytest

from tests.support.fake_api import FakeApi
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS
from trainyard.kube.session import Session


class NotNowError(Exception):
    """Whatever the permit raises."""


def bound(api: FakeApi, *left: float) -> Session:
    """A session whose permit gives so many seconds, one after the other, and then none."""
    session = api.session()
    answers = list(left)

    def permit() -> float:
        if not answers:
            raise NotNowError
        return answers.pop(0)

    session.permit = permit
    return session


async def test_without_a_permit_nothing_is_sent(api: FakeApi) -> None:
    writer = Writer(bound(api))
    with api.no_calls():
        for write in (
            writer.create(PODS, "lab", {"metadata": {"name": "a"}}),
            writer.delete(PODS, "lab", "a", uid="x"),
            writer.replace_status(PODS, "lab", "a", {"metadata": {"resourceVersion": "1"}}),
            writer.merge(PODS, "lab", "a", {}),
        ):
            with pytest.raises(NotNowError):
                await write


async def test_reads_need_no_permit(api: FakeApi) -> None:
    assert await Writer(bound(api)).get(PODS, "lab", "a") is None


async def test_permit_is_called_again_after_each_wait(api: FakeApi) -> None:
    api.fault(method="POST", status=429, retry_after=0, times=3)
    with pytest.raises(NotNowError):
        await Writer(bound(api, 5, 5)).create(PODS, "lab", {"metadata": {"name": "a"}})
    assert len(api.writes) == 2


async def test_deadline_is_sent_to_the_server(api: FakeApi) -> None:
    await Writer(bound(api, 4.25)).create(PODS, "lab", {"metadata": {"name": "a"}})
    assert api.writes[0].query == {"timeout": "4250ms"}


async def test_answer_after_the_deadline_is_dropped(api: FakeApi) -> None:
    api.fault(method="POST", delay=5)
    async with asyncio.timeout(4):
        with pytest.raises(ApiError) as error:
            await Writer(bound(api, 0.05)).create(PODS, "lab", {"metadata": {"name": "a"}})
    assert error.value.reason == "Timeout"
