"""A profile that the platform team has changed under a running group: no group has pods of both."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW, Scene
from tests.support.reconciles import running
from tests.unit.domain.recovering import RUNS
from trainyard.api.recovery import RestartScope
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.state.network_view import NetworkView

BEFORE, NOW_SET = NetworkView("efa", "efa@1"), NetworkView("efa", "efa@2")


def planned(scene: Scene, network: NetworkView) -> Plan:
    """Plan for workers that were created with the profile as it was before."""
    pods = tuple(replace(pod, network=BEFORE.stamp) for pod in scene.pods)
    return plan(replace(replace(scene, pods=pods).snapshot, network=network), NOW)


@pytest.mark.parametrize(
    ("network", "scope"),
    [
        pytest.param(BEFORE, RestartScope.POD, id="as it was"),
        pytest.param(NOW_SET, RestartScope.GROUP, id="changed"),
        pytest.param(NetworkView(), RestartScope.GROUP, id="removed"),
    ],
)
def test_new_pod_joins_pods_of_its_profile(network: NetworkView, scope: RestartScope) -> None:
    assert planned(RUNS.deleted(1), network).status.internal.backoff.scope is scope


def test_processes_restart_in_place_under_the_old_profile() -> None:
    decided = planned(RUNS.reported_failed(1), NOW_SET)
    assert decided.status.internal.backoff.scope is RestartScope.PROCESS


def test_unchanged_group_is_left_alone() -> None:
    decided = planned(RUNS, NOW_SET)
    assert (decided.status.attempt, decided.actions) == (1, [])


@pytest.mark.parametrize(("network", "joins"), [(BEFORE, True), (NOW_SET, False)])
def test_workers_join_pods_of_their_profile(network: NetworkView, joins: bool) -> None:  # noqa: FBT001 - a table
    grown = planned(running(2).with_spec(replicas=4), network).status
    assert (grown.internal.joining is not None) is joins
    assert grown.attempt == (1 if joins else 2)
