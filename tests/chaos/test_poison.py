"""Nothing that the API server stores harms the operator or another job, and the cause is reported in clear messages."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from tests.chaos.admin_client import JOBS as JOBS_PATH, MERGE, AnswerError
from tests.chaos.poisoned_manifests import JOBS, Case, manifest
from tests.chaos.poisoned_pods import DEEDS, VICTIM, Deed
from tests.chaos.scenario_run import clean
from tests.chaos.shared_operator import SharedOperator, admitted
from tests.support.control_plane import ControlPlane

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def shared(
    runner: asyncio.Runner, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedOperator]:
    stack = AsyncExitStack()
    yield runner.run(stack.enter_async_context(admitted(plane, tmp_path_factory.mktemp("shared"))))
    runner.run(stack.aclose())


@pytest.mark.parametrize("case", JOBS, ids=str)
def test_poisoned_job_does_no_harm(case: Case, runner: asyncio.Runner, shared: SharedOperator) -> None:
    runner.run(_poisoned_job(case, shared))


async def _poisoned_job(case: Case, shared: SharedOperator) -> None:
    job = manifest()
    case.change(job)
    async with discharging(shared):
        refusal, made = "", {}
        try:
            made = await shared.client.call("POST", JOBS_PATH, job)
        except AnswerError as error:
            refusal = str(error)[:2000]
        assert bool(refusal) == bool(case.refused), refusal or "was not refused"
        assert [words for words in case.refused if words not in refusal] == [], refusal
        if refusal:
            return
        name = made["metadata"]["name"]
        if case.messages:
            await shared.until_reported(made["metadata"], case.messages)
        else:
            await shared.context.until(
                lambda: shared.context.status(name).get("internal", {}).get("launchedAttempt") == 1, "its workers"
            )
        await shared.healthy()
        shared.sane()


@asynccontextmanager
async def discharging(shared: SharedOperator) -> AsyncIterator[None]:
    """Leaves an empty namespace to the next test, also after a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note("\n".join([*(str(line)[:3000] for line in shared.lines())]))
        raise
    finally:
        for name, job in [*shared.history.jobs().items()]:
            if job["metadata"].get("finalizers"):
                await shared.client.call("PATCH", f"{JOBS_PATH}/{name}", {"metadata": {"finalizers": None}}, MERGE)
        await clean(shared.client, shared.history)
        shared.lines()


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_poisoned_pod_does_no_harm(deed: Deed, runner: asyncio.Runner, shared: SharedOperator) -> None:
    runner.run(_a_victim(deed, shared))


async def _a_victim(deed: Deed, shared: SharedOperator) -> None:
    async with discharging(shared):
        made = await shared.client.call("POST", JOBS_PATH, manifest(VICTIM))
        await shared.context.until(
            lambda: shared.context.status(VICTIM).get("internal", {}).get("launchedAttempt") == 1, "the victim's worker"
        )
        await shared.context.run(1, 0, name=VICTIM)
        await shared.context.running(VICTIM)
        with suppress(AnswerError):  # the server knows better than to store it, which is as good
            await deed.act(shared, made["metadata"]["uid"])
        await shared.healthy()
        if deed.goes_on:
            await shared.context.end(1, 0, name=VICTIM)
            await shared.context.condition("Complete", "True", VICTIM)
        shared.sane()


def test_operator_starts_amid_all_poison(runner: asyncio.Runner, shared: SharedOperator) -> None:
    runner.run(_amid_all(shared))


async def _amid_all(shared: SharedOperator) -> None:
    async with discharging(shared):
        shared.operator.kill(away=1.0)
        for number, case in enumerate(case for case in JOBS if not case.refused):
            job = manifest()
            case.change(job)
            job["metadata"]["name"] = f"poison-{number}"
            await shared.client.call("POST", JOBS_PATH, job)
        await shared.healthy()
        shared.sane()
