"""Nothing that can be stored in the API server harms the operator or another job, and whom it concerns is told in clear words."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from tests.chaos.play import clean
from tests.chaos.poison import JOBS, Case, manifest
from tests.chaos.poison_pods import DEEDS, VICTIM, Deed
from tests.chaos.rest import JOBS as JOBS_PATH, MERGE, AnswerError
from tests.chaos.ward import Ward, admitted
from tests.support.control_plane import ControlPlane

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def ward(runner: asyncio.Runner, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(admitted(plane, tmp_path_factory.mktemp("ward"))))
    runner.run(stack.aclose())


@pytest.mark.parametrize("case", JOBS, ids=str)
def test_poisoned_job_does_no_harm(case: Case, runner: asyncio.Runner, ward: Ward) -> None:
    runner.run(_poisoned_job(case, ward))


async def _poisoned_job(case: Case, ward: Ward) -> None:
    job = manifest()
    case.change(job)
    async with discharging(ward):
        refusal, made = "", {}
        try:
            made = await ward.rest.call("POST", JOBS_PATH, job)
        except AnswerError as error:
            refusal = str(error)[:2000]
        assert bool(refusal) == bool(case.refused), refusal or "was not refused"
        assert [words for words in case.refused if words not in refusal] == [], refusal
        if refusal:
            return
        name = made["metadata"]["name"]
        if case.told:
            await ward.told(made["metadata"], case.told)
        else:
            await ward.lab.until(lambda: ward.lab.status(name).get("launchedAttempt") == 1, "its workers")
        await ward.healthy()
        ward.sane()


@asynccontextmanager
async def discharging(ward: Ward) -> AsyncIterator[None]:
    """Leaves an empty namespace to the next test, also after a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join([*(str(line)[:3000] for line in ward.lines())]))
        raise
    finally:
        for name, job in [*ward.history.jobs().items()]:
            if job["metadata"].get("finalizers"):
                await ward.rest.call("PATCH", f"{JOBS_PATH}/{name}", {"metadata": {"finalizers": None}}, MERGE)
        await clean(ward.rest, ward.history)
        ward.lines()


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_poisoned_pod_does_no_harm(deed: Deed, runner: asyncio.Runner, ward: Ward) -> None:
    runner.run(_a_victim(deed, ward))


async def _a_victim(deed: Deed, ward: Ward) -> None:
    async with discharging(ward):
        made = await ward.rest.call("POST", JOBS_PATH, manifest(VICTIM))
        await ward.lab.until(lambda: ward.lab.status(VICTIM).get("launchedAttempt") == 1, "the victim's worker")
        await ward.lab.run(1, 0, name=VICTIM)
        await ward.lab.running(VICTIM)
        with suppress(AnswerError):  # the server knows better than to store it, which is as good
            await deed.act(ward, made["metadata"]["uid"])
        await ward.healthy()
        if deed.goes_on:
            await ward.lab.end(1, 0, name=VICTIM)
            await ward.lab.condition("Complete", "True", VICTIM)
        ward.sane()


def test_operator_starts_amid_all_poison(runner: asyncio.Runner, ward: Ward) -> None:
    runner.run(_amid_all(ward))


async def _amid_all(ward: Ward) -> None:
    async with discharging(ward):
        ward.operator.kill(away=1.0)
        for number, case in enumerate(case for case in JOBS if not case.refused):
            job = manifest()
            case.change(job)
            job["metadata"]["name"] = f"poison-{number}"
            await ward.rest.call("POST", JOBS_PATH, job)
        await ward.healthy()
        ward.sane()
