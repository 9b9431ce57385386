"""Long polls of agents: assignments, disconnects and rejections."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, UID, condition
from tests.support.running_coordinator import RunningCoordinator
from tests.support.waiting import until
from trainyard.api.agent_protocol import SYNC_PATH, AgentState, StopProgress
from trainyard.api.internal_status import CoordinatedStop, Group, Rendezvous
from trainyard.api.status import ConditionType as C, LastFailure
from trainyard.coordinator import connection_limits, listener, server
from trainyard.domain.state.worker_views import AgentView

RUNNING = {"attempt": 1, "state": "running"}
FAILED = {
    "attempt": 1,
    "state": "failed",
    "failure": {"code": 3, "message": '{"trainyard":1,"kind":"failed","rank":1,"exitCode":3}\nboom', "age": 2},
}
WAITING = {"attempt": 2, "state": "waiting"}
POD = "pod-1-1"


async def call(coordinator: RunningCoordinator, body: object, uid: str = POD) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(20):
        return await coordinator.post(body, coordinator.token(uid), SYNC_PATH)


def decide(coordinator: RunningCoordinator, **status: Any) -> None:
    """Store a change in the job's status."""
    coordinator.scene = coordinator.scene.with_status(**status)
    coordinator.agent_registry.wake(UID)


async def held(coordinator: RunningCoordinator, body: object) -> "asyncio.Task[tuple[int, dict[str, Any]]]":
    waits = asyncio.create_task(call(coordinator, body))
    await until(lambda: coordinator.agent_registry.connected == 1)
    return waits


async def test_sync_waits_until_the_assignment_changes(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    assert await waits == (200, {"attempt": 2, "run": False, "environment": {}})
    assert (coordinator.counted("Accepted", "calls"), coordinator.counted("Accepted")) == (1, 0)


async def test_waiting_worker_starts_when_rendezvous_is_stored(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_status(attempt=2, group=Group(created_in_attempt=1))
    waits = await held(coordinator, WAITING)
    decide(coordinator, rendezvous=Rendezvous(attempt=1, address="10.0.0.7"))
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(coordinator, rendezvous=Rendezvous(attempt=2, address="10.0.0.8"))
    status, word = await waits
    assert (status, word["attempt"], word["run"]) == (200, 2, True)
    assert word["environment"].items() >= {"MASTER_ADDR": "10.0.0.8", "RANK": "1", "TRAINYARD_ATTEMPT": "2"}.items()


async def test_container_restart_is_assigned_and_acknowledged_at_once(
    coordinator: RunningCoordinator,
) -> None:
    waits = await held(coordinator, RUNNING)
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1, restarting_container=1))
    assert (await waits)[1] == {"attempt": 2, "run": False, "environment": {}, "restart": True}
    answer = await call(coordinator, {"attempt": 2, "state": "restarting"})
    assert answer[0] == 200
    assert coordinator.agent_registry.of(UID, [POD])[POD].state is AgentState.RESTARTING
    assert coordinator.agent_registry.connected == 0


async def test_all_workers_learn_of_a_hang(coordinator: RunningCoordinator) -> None:
    hung = LastFailure(time=NOW, attempt=1, pod="train-worker-0-1", pod_uid="pod-0-1", exit_code=91, reason="Error")
    waits = await held(coordinator, RUNNING)
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1), last_failure=hung)
    assert (await waits)[1] == {"attempt": 2, "run": False, "environment": {}, "hung": True}


async def test_environment_describes_the_existing_group(coordinator: RunningCoordinator) -> None:
    met = {"attempt": 2, "group": Group(created_in_attempt=1), "rendezvous": Rendezvous(attempt=2, address="10.0.0.7")}
    coordinator.scene = coordinator.scene.with_status(**met).with_spec(replicas=5)
    _, word = await call(coordinator, WAITING)
    reported = {name: word["environment"][name] for name in ("WORLD_SIZE", "PET_NNODES", "TRAINYARD_REPLICAS")}
    assert set(reported.values()) == {"3"}


async def test_long_poll_ends_without_a_change(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LONG_POLL_SECONDS", 0.1)
    assert (await call(coordinator, RUNNING))[1]["attempt"] == 1


async def test_first_long_poll_is_short(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without an answer gives up on a lost leader, and its failure report is lost, before another one
    leads.
    """
    monkeypatch.setattr(server, "FIRST_LONG_POLL_SECONDS", 0.05)
    async with asyncio.timeout(10):
        assert (await call(coordinator, RUNNING))[1]["attempt"] == 1
    second = await held(coordinator, RUNNING)
    await asyncio.sleep(0.3)
    assert not second.done()
    second.cancel()


async def test_reported_failure_equals_container_status(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, FAILED)
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert agent.exit is not None
    assert (agent.state, agent.exit.code, agent.exit.rank) == (AgentState.FAILED, 3, 1)
    assert agent.exit.time == NOW - timedelta(seconds=2)
    assert coordinator.changes == [UID]
    waits.cancel()


async def test_repeated_failure_report_keeps_its_time(coordinator: RunningCoordinator) -> None:
    first = await held(coordinator, FAILED)
    coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=90)
    again = asyncio.create_task(call(coordinator, FAILED))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client calls a connection that is closed
        await first
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert agent.exit is not None
    assert (agent.exit.time, agent.connected) == (NOW - timedelta(seconds=2), True)
    again.cancel()


@pytest.mark.parametrize(
    ("body", "uid", "status", "reason"),
    [
        (RUNNING, "pod-of-another-job", 403, "UnknownPod"),
        (b"{", POD, 400, "Malformed"),
        ({"attempt": 1}, POD, 400, "Malformed"),
        ({"attempt": 1, "state": "asleep"}, POD, 400, "Malformed"),
        ({"attempt": 10**30, "state": "running"}, POD, 400, "Malformed"),
        ({"attempt": 1, "state": "failed"}, POD, 400, "Malformed"),
        ({**RUNNING, "failure": FAILED["failure"]}, POD, 400, "Malformed"),
        ({**FAILED, "failure": {"code": 0}}, POD, 400, "Malformed"),
        (b'{"attempt": 1, "state": "failed", "failure": {"code": 1, "age": NaN}}', POD, 400, "Malformed"),
        (b"x" * 10_000_000, POD, 413, "TooLarge"),
    ],
)
async def test_rejected_sync_is_counted_and_changes_nothing(
    coordinator: RunningCoordinator, body: object, uid: str, status: int, reason: str
) -> None:
    answered, answer = await call(coordinator, body, uid)
    assert (answered, answer["reason"], coordinator.counted(reason, "calls")) == (status, reason, 1)
    assert (coordinator.agent_registry.connected, coordinator.changes) == (0, [])


async def test_replaced_worker_is_rejected(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    decide(coordinator, attempt=2)
    status, word = await waits
    assert (status, word["reason"]) == (410, "Replaced")
    assert coordinator.agent_registry.of(UID, [POD]) == {}, "not silent: dismissed"


async def test_worker_of_unknown_later_attempt_retries(coordinator: RunningCoordinator) -> None:
    """The status was restored from a backup, for example: it is corrected in a moment."""
    coordinator.scene = (
        replace(coordinator.scene, pods=()).running(attempt=4).with_status(attempt=1, launched_attempt=1)
    )
    decide(coordinator)
    status, word = await call(coordinator, {**RUNNING, "attempt": 4}, "pod-0-4")
    assert (status, word["reason"]) == (403, "UnknownPod")


async def test_a_suspended_job_has_no_workers(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    coordinator.scene = coordinator.scene.with_conditions(condition(C.SUSPENDED))
    decide(coordinator)
    assert (await waits)[1]["reason"] == "Replaced"


async def test_finished_job_rejects_sync(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, FAILED)
    coordinator.scene = coordinator.scene.finished(C.FAILED)
    coordinator.agent_registry.forget(UID)
    status, word = await waits
    assert (status, word["reason"]) == (410, "Over")


async def test_lost_leadership_ends_long_polls(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    coordinator.leading = False
    decide(coordinator)
    assert (await waits)[1]["reason"] == "NotLeading"


async def test_closed_connection_is_disconnected_but_not_vanished(coordinator: RunningCoordinator) -> None:
    waits = await held(coordinator, RUNNING)
    waits.cancel()
    await until(lambda: coordinator.agent_registry.connected == 0)
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert (agent.left_at, agent.vanished, agent.state) == (NOW, False, AgentState.RUNNING)
    assert coordinator.changes == [UID, UID]


@pytest.mark.parametrize(
    ("error", "silent"),
    [(TimeoutError(110, "timed out"), True), (OSError(113, "no route to host"), True), (ConnectionResetError(), False)],
)
async def test_unreachable_node_counts_as_vanished(
    coordinator: RunningCoordinator, *, error: OSError, silent: bool
) -> None:
    with coordinator.agent_registry.long_poll(UID, POD, AgentView(1, AgentState.RUNNING)) as waits:
        coordinator.agent_registry.disconnected(UID, POD, waits, error)
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert (agent.connected, agent.vanished) == (False, silent)


async def test_announced_exit_is_no_disconnect(coordinator: RunningCoordinator) -> None:
    assert (await call(coordinator, {"attempt": 1, "state": "ended"}))[0] == 200
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert agent.state is AgentState.ENDED


async def test_keepalive_timeout_counts_as_vanished(coordinator: RunningCoordinator) -> None:
    """The connection is lost with the kernel's error, as it is when a node is switched off."""
    waits = await held(coordinator, RUNNING)
    (connection,) = coordinator.server.authenticated.connections
    connection.connection_lost(TimeoutError(110, "timed out"))
    await until(lambda: coordinator.agent_registry.connected == 0)
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert agent.vanished
    waits.cancel()


async def test_disconnect_between_requests_is_noticed(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(server, "LONG_POLL_SECONDS", 0.05)
    async with coordinator.server.serve("127.0.0.1", 0) as port:
        coordinator.port = port
        assert (await call(coordinator, RUNNING))[0] == 200
        await until(lambda: coordinator.agent_registry.connected == 0)
    (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert (agent.left_at, agent.vanished) == (NOW, False)


async def test_uninterrupted_connection_time_of_an_agent(coordinator: RunningCoordinator) -> None:
    def later(seconds: int) -> None:
        coordinator.agent_registry.now = lambda: NOW + timedelta(seconds=seconds)
        coordinator.agent_registry.monotonic = lambda: float(seconds)

    with coordinator.agent_registry.long_poll(UID, POD, AgentView(1, AgentState.RUNNING)):
        later(10)
    with coordinator.agent_registry.long_poll(UID, POD, AgentView(2, AgentState.WAITING)) as waits:
        (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
        assert (agent.since, agent.reported_at) == (NOW, NOW + timedelta(seconds=10))
        coordinator.agent_registry.disconnected(UID, POD, waits, None)
    later(20)
    with coordinator.agent_registry.long_poll(UID, POD, AgentView(2, AgentState.WAITING)):
        (agent,) = coordinator.agent_registry.of(UID, [POD]).values()
    assert (agent.since, agent.reported_at) == (NOW + timedelta(seconds=20), NOW + timedelta(seconds=10))


async def test_one_connection_for_each_pod(coordinator: RunningCoordinator) -> None:
    first = await held(coordinator, RUNNING)
    second = asyncio.create_task(call(coordinator, RUNNING))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client calls a connection that is closed
        await first
    assert coordinator.agent_registry.connected == 1
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    assert (await second)[1]["attempt"] == 2


async def test_long_poll_is_neither_counted_nor_swept(
    coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNAUTHENTICATED_CONNECTIONS", 1)
    coordinator.place("127.0.0.1")
    monkeypatch.setattr(listener, "UNAUTHENTICATED_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    waits = await held(coordinator, RUNNING)
    async with asyncio.timeout(10):
        assert (await coordinator.post({"attempt": 1, "ranks": {}}, coordinator.token("pod-0-1")))[0] == 200
    await asyncio.sleep(0.3)
    decide(coordinator, attempt=2, group=Group(created_in_attempt=1))
    assert (await waits)[0] == 200


async def test_connection_is_reused(coordinator: RunningCoordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONG_POLL_SECONDS", 0.05)
    body = json.dumps(RUNNING).encode()
    reader, writer = await asyncio.open_connection("localhost", coordinator.port, ssl=coordinator.client)
    request = f"POST {SYNC_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {coordinator.token()}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(3):
        writer.write(request.encode() + body)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
            )
            assert json.loads(await reader.readexactly(length))["attempt"] == 1
    writer.close()


def test_agents_of_deleted_pods_are_forgotten(coordinator: RunningCoordinator) -> None:
    with coordinator.agent_registry.long_poll(UID, POD, AgentView(1, AgentState.RUNNING)):
        assert coordinator.agent_registry.of(UID, ["another"]) == {}
    assert coordinator.agent_registry.of(UID, [POD]) == {}


ABLE = {**RUNNING, "leave": {"leaving": False, "asked": False, "passed": None, "at": None}}


def on_the_way(**leave: Any) -> dict[str, Any]:
    return {**RUNNING, "leave": {**ABLE["leave"], **leave}}  # type: ignore[dict-item]  # a JSON object


async def test_stop_is_assigned_first_then_its_step(coordinator: RunningCoordinator) -> None:
    stop = CoordinatedStop(attempt=1, time=NOW)
    waits = await held(coordinator, on_the_way(leaving=True))
    assert coordinator.agent_registry.of(UID, [POD])[POD].leave == StopProgress(leaving=True)
    decide(coordinator, coordinated_stop=stop)
    _, word = await waits
    assert (word["attempt"], word["stop"]) == (1, {"step": None})
    waits = await held(coordinator, on_the_way(asked=True, passed=7))
    decide(coordinator, coordinated_stop=stop.evolve(step=8))
    _, word = await waits
    assert word["stop"] == {"step": 8}
    waits = await held(coordinator, on_the_way(asked=True, passed=7, at=8))
    decide(coordinator)
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(coordinator, coordinated_stop=None)
    _, word = await waits
    assert "stop" not in word


async def test_each_stage_of_a_stop_is_sent_once(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_status(coordinated_stop=CoordinatedStop(attempt=1, time=NOW))
    for leave in ({"asked": True, "passed": 7}, {"asked": True, "passed": 7}, {"asked": True, "passed": None}):
        waits = await held(coordinator, on_the_way(**leave))
        waits.cancel()
        await until(lambda: coordinator.agent_registry.connected == 0)
    # The last two differ, and each comes over a connection of its own: three times back, and twice gone.
    assert len(coordinator.changes) == 6


@pytest.mark.parametrize("body", [RUNNING, FAILED], ids=["takes no part", "has ended"])
async def test_worker_outside_a_stop_gets_no_assignment(coordinator: RunningCoordinator, body: Any) -> None:
    coordinator.scene = coordinator.scene.with_status(coordinated_stop=CoordinatedStop(attempt=1, time=NOW, step=8))
    waits = await held(coordinator, body)
    await asyncio.sleep(0.05)
    assert not waits.done()
    waits.cancel()


@pytest.mark.parametrize(
    "leave", [{"passed": -2}, {"passed": 1.5}, {"passed": 2**60}, {"at": -1}, {"leaving": "yes"}, {"asked": 1}, 7]
)
async def test_invalid_leave_fields(coordinator: RunningCoordinator, leave: Any) -> None:
    status, answer = await call(coordinator, {**RUNNING, "leave": leave})
    assert (status, answer["reason"]) == (400, "Malformed")
    assert answer["message"].startswith("leave")
    assert coordinator.agent_registry.connected == 0


async def test_waiting_agent_reports_when_prepared(coordinator: RunningCoordinator) -> None:
    coordinator.scene = coordinator.scene.with_status(attempt=2, group=Group(created_in_attempt=1))
    for reported in ({"prepared": False}, {"prepared": False}, {}):
        waits = await held(coordinator, WAITING | reported)
        assert coordinator.agent_registry.of(UID, [POD])[POD].prepared is (not reported)
        waits.cancel()
        await until(lambda: coordinator.agent_registry.connected == 0)
    # Each comes over a connection of its own: three times back, and twice gone.
    assert len(coordinator.changes) == 6
    status, answer = await call(coordinator, WAITING | {"prepared": 1})
    assert (status, answer["message"].partition(":")[0]) == (400, "prepared")
