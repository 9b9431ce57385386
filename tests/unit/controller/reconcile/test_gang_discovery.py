"""The operator asks once which gang schedulers the cluster has, and only about permitted ones."""

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from trainyard.api.scheduling import GangScheduler as G
from trainyard.controller.reconcile.gang_discovery import GangDiscovery

KINDS = "/apis/scheduling.k8s.io/"
POD_GROUPS = {"kind": "APIResourceList", "resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]}
OTHERS = {"kind": "APIResourceList", "resources": [{"name": "priorityclasses"}]}


async def no_sleep(_: float) -> None:
    pass


def discovery(api: FakeApi, *permitted: G) -> GangDiscovery:
    return GangDiscovery(api.session(), permitted, sleep=no_sleep)


def absent(api: FakeApi, path: str) -> None:
    api.fault(method="GET", path=path, status=404, reason="NotFound", times=100)


async def test_newest_native_version_is_used(api: FakeApi) -> None:
    api.served |= {f"{KINDS}v1beta1": POD_GROUPS, f"{KINDS}v1alpha2": POD_GROUPS}
    found = discovery(api, G.NATIVE)
    await found.ask()
    assert found.resource(G.NATIVE).api_version == "scheduling.k8s.io/v1beta1"
    assert [call.path for call in api.calls] == [f"{KINDS}v1beta1"]


async def test_version_without_pod_groups_does_not_count(api: FakeApi) -> None:
    api.served |= {f"{KINDS}v1beta1": OTHERS, f"{KINDS}v1alpha2": POD_GROUPS}
    found = discovery(api, G.NATIVE)
    await found.ask()
    assert found.resource(G.NATIVE).api_version == "scheduling.k8s.io/v1alpha2"


async def test_only_permitted_schedulers_are_asked_for(api: FakeApi) -> None:
    await discovery(api).ask()
    assert api.calls == []
    absent(api, ".*volcano.*")
    found = discovery(api, G.VOLCANO)
    await found.ask()
    assert [call.path for call in api.calls] == ["/apis/scheduling.volcano.sh/v1beta1"]
    assert found.schedulers.found == frozenset()
    assert found.schedulers.permitted == (G.VOLCANO,)


@pytest.mark.parametrize("status", [500, 503])
async def test_failed_question_is_repeated(api: FakeApi, status: int) -> None:
    api.fault(method="GET", path=".*volcano.*", status=status, times=2)
    api.served["/apis/scheduling.volcano.sh/v1beta1"] = POD_GROUPS
    found = discovery(api, G.VOLCANO)
    await found.ask()
    assert found.schedulers.found == {G.VOLCANO}
    assert len(api.calls) == 3


async def test_forbidden_question_finds_nothing(api: FakeApi) -> None:
    api.fault(method="GET", path=".*volcano.*", status=403, reason="Forbidden", times=100)
    found = discovery(api, G.VOLCANO)
    await found.ask()
    assert found.schedulers.found == frozenset()


async def test_operator_asks_once(api: FakeApi) -> None:
    api.served["/apis/scheduling.volcano.sh/v1beta1"] = POD_GROUPS
    async with operator(api, gang_schedulers=(G.VOLCANO,)) as made:
        await until(lambda: made.gang_discovery.schedulers.found == {G.VOLCANO})
    assert [call.path for call in api.calls].count("/apis/scheduling.volcano.sh/v1beta1") == 1


async def test_standby_does_not_ask(api: FakeApi) -> None:
    api.fault(method="GET", path=".*leases.*", status=500, times=10_000)
    api.fault(method="POST", path=".*leases.*", status=500, times=10_000)
    async with operator(api, gang_schedulers=(G.VOLCANO,), leader_election=True, lease_namespace="lab"):
        await until(lambda: any("leases" in call.path for call in api.calls))
    assert not [call for call in api.calls if "volcano" in call.path]
