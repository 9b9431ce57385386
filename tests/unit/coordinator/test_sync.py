"""How agents wait for a word: who gets which, when, and what is known of those that do not wait any more."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, UID, condition
from tests.support.waiting import until
from tests.unit.coordinator.conftest import Office
from trainyard.api.agent_protocol import SYNC_PATH
from trainyard.api.internal_status import CoordinatedStop, Group, Rendezvous
from trainyard.api.status import ConditionType as C, LastFailure
from trainyard.coordinator import listener, server
from trainyard.domain.state.snapshot import AgentView, Doing, LeaveView

RUNNING = {"attempt": 1, "state": "running"}
FAILED = {
    "attempt": 1,
    "state": "failed",
    "failure": {"code": 3, "message": '{"trainyard":1,"kind":"failed","rank":1,"exitCode":3}\nboom', "age": 2},
}
WAITING = {"attempt": 2, "state": "waiting"}
POD = "pod-1-1"


async def call(office: Office, body: object, uid: str = POD) -> tuple[int, dict[str, Any]]:
    async with asyncio.timeout(20):
        return await office.post(body, office.token(uid), SYNC_PATH)


def decide(office: Office, **status: Any) -> None:
    """Something else is stored in the job's status."""
    office.scene = office.scene.with_status(**status)
    office.attendance.wake(UID)


async def held(office: Office, body: object) -> "asyncio.Task[tuple[int, dict[str, Any]]]":
    waits = asyncio.create_task(call(office, body))
    await until(lambda: office.attendance.connected == 1)
    return waits


async def test_who_does_what_it_is_to_do_waits_until_that_changes(office: Office) -> None:
    waits = await held(office, RUNNING)
    decide(office)
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(office, attempt=2, group=Group(created_in_attempt=1))
    assert await waits == (200, {"attempt": 2, "run": False, "environment": {}})
    assert (office.counted("Accepted", "calls"), office.counted("Accepted")) == (1, 0)


async def test_who_waits_begins_once_the_rendezvous_is_stored(office: Office) -> None:
    office.scene = office.scene.with_status(attempt=2, group=Group(created_in_attempt=1))
    waits = await held(office, WAITING)
    decide(office, rendezvous=Rendezvous(attempt=1, address="10.0.0.7"))
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(office, rendezvous=Rendezvous(attempt=2, address="10.0.0.8"))
    status, word = await waits
    assert (status, word["attempt"], word["run"]) == (200, 2, True)
    assert word["environment"].items() >= {"MASTER_ADDR": "10.0.0.8", "RANK": "1", "TRAINYARD_ATTEMPT": "2"}.items()


async def test_who_starts_its_container_anew_is_told_and_says_so_without_waiting(office: Office) -> None:
    waits = await held(office, RUNNING)
    decide(office, attempt=2, group=Group(created_in_attempt=1, restarting_container=1))
    assert (await waits)[1] == {"attempt": 2, "run": False, "environment": {}, "restart": True}
    said = await call(office, {"attempt": 2, "state": "restarting"})
    assert said[0] == 200
    assert office.attendance.of(UID, [POD])[POD].doing is Doing.RESTARTING
    assert office.attendance.connected == 0


async def test_of_a_hang_all_workers_are_told(office: Office) -> None:
    hung = LastFailure(time=NOW, attempt=1, pod="train-worker-0-1", pod_uid="pod-0-1", exit_code=91, reason="Error")
    waits = await held(office, RUNNING)
    decide(office, attempt=2, group=Group(created_in_attempt=1), last_failure=hung)
    assert (await waits)[1] == {"attempt": 2, "run": False, "environment": {}, "hung": True}


async def test_the_ranks_are_told_of_the_group_that_is_there(office: Office) -> None:
    met = {"attempt": 2, "group": Group(created_in_attempt=1), "rendezvous": Rendezvous(attempt=2, address="10.0.0.7")}
    office.scene = office.scene.with_status(**met).wishing(replicas=5)
    _, word = await call(office, WAITING)
    told = {name: word["environment"][name] for name in ("WORLD_SIZE", "PET_NNODES", "TRAINYARD_REPLICAS")}
    assert set(told.values()) == {"3"}


async def test_after_a_while_there_is_an_answer_all_the_same(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HOLD_SECONDS", 0.1)
    assert (await call(office, RUNNING))[1]["attempt"] == 1


async def test_who_calls_for_the_first_time_has_an_answer_soon(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has never had one gives up an operator that is gone, and takes its failure along, before another leads."""
    monkeypatch.setattr(server, "FIRST_HOLD_SECONDS", 0.05)
    async with asyncio.timeout(10):
        assert (await call(office, RUNNING))[1]["attempt"] == 1
    second = await held(office, RUNNING)
    await asyncio.sleep(0.3)
    assert not second.done()
    second.cancel()


async def test_a_failure_is_known_as_the_node_would_tell_it(office: Office) -> None:
    waits = await held(office, FAILED)
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert agent.exit is not None
    assert (agent.doing, agent.exit.code, agent.exit.rank) == (Doing.FAILED, 3, 1)
    assert agent.exit.time == NOW - timedelta(seconds=2)
    assert office.news == [UID]
    waits.cancel()


async def test_a_failure_that_is_told_again_did_not_happen_again(office: Office) -> None:
    first = await held(office, FAILED)
    office.attendance.now = lambda: NOW + timedelta(seconds=90)
    again = asyncio.create_task(call(office, FAILED))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client calls a connection that is closed
        await first
    (agent,) = office.attendance.of(UID, [POD]).values()
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
async def test_what_is_refused_is_counted_and_changes_nothing(
    office: Office, body: object, uid: str, status: int, reason: str
) -> None:
    answered, answer = await call(office, body, uid)
    assert (answered, answer["reason"], office.counted(reason, "calls")) == (status, reason, 1)
    assert (office.attendance.connected, office.news) == (0, [])


async def test_a_replaced_worker_is_told_so(office: Office) -> None:
    waits = await held(office, RUNNING)
    decide(office, attempt=2)
    status, word = await waits
    assert (status, word["reason"]) == (410, "Replaced")
    assert office.attendance.of(UID, [POD]) == {}, "not silent: dismissed"


async def test_a_worker_of_a_later_attempt_than_the_status_knows_of_asks_again(office: Office) -> None:
    """The status was restored from a backup, say: it is set right in a moment."""
    office.scene = replace(office.scene, pods=()).running(attempt=4).with_status(attempt=1, launched_attempt=1)
    decide(office)
    status, word = await call(office, {**RUNNING, "attempt": 4}, "pod-0-4")
    assert (status, word["reason"]) == (403, "UnknownPod")


async def test_a_suspended_job_has_no_workers(office: Office) -> None:
    waits = await held(office, RUNNING)
    office.scene = office.scene.saying(condition(C.SUSPENDED))
    decide(office)
    assert (await waits)[1]["reason"] == "Replaced"


async def test_an_end_is_told(office: Office) -> None:
    waits = await held(office, FAILED)
    office.scene = office.scene.finished(C.FAILED)
    office.attendance.forget(UID)
    status, word = await waits
    assert (status, word["reason"]) == (410, "Over")


async def test_who_leads_no_more_says_so(office: Office) -> None:
    waits = await held(office, RUNNING)
    office.leading = False
    decide(office)
    assert (await waits)[1]["reason"] == "NotLeading"


async def test_an_agent_that_hangs_up_is_not_there_and_its_node_not_silent(office: Office) -> None:
    waits = await held(office, RUNNING)
    waits.cancel()
    await until(lambda: office.attendance.connected == 0)
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert (agent.left_at, agent.vanished, agent.doing) == (NOW, False, Doing.RUNNING)
    assert office.news == [UID, UID]


@pytest.mark.parametrize(
    ("error", "silent"),
    [(TimeoutError(110, "timed out"), True), (OSError(113, "no route to host"), True), (ConnectionResetError(), False)],
)
async def test_a_node_that_does_not_answer_is_silent(office: Office, *, error: OSError, silent: bool) -> None:
    with office.attendance.call(UID, POD, AgentView(1, Doing.RUNNING)) as waits:
        office.attendance.left(UID, POD, waits, error)
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert (agent.connected, agent.vanished) == (False, silent)


async def test_who_says_good_bye_is_not_missed(office: Office) -> None:
    assert (await call(office, {"attempt": 1, "state": "ended"}))[0] == 200
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert agent.doing is Doing.ENDED


async def test_the_kernel_s_time_out_arrives_as_such(office: Office) -> None:
    """The connection is lost with the kernel's error, as it is when a node is switched off."""
    waits = await held(office, RUNNING)
    (connection,) = office.coordinator.guests.connections
    connection.connection_lost(TimeoutError(110, "timed out"))
    await until(lambda: office.attendance.connected == 0)
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert agent.vanished
    waits.cancel()


async def test_who_hangs_up_between_two_calls_is_missed_too(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(server, "HOLD_SECONDS", 0.05)
    async with office.coordinator.serve("127.0.0.1", 0) as port:
        office.port = port
        assert (await call(office, RUNNING))[0] == 200
        await until(lambda: office.attendance.connected == 0)
    (agent,) = office.attendance.of(UID, [POD]).values()
    assert (agent.left_at, agent.vanished) == (NOW, False)


async def test_since_when_an_agent_is_there_without_a_break(office: Office) -> None:
    def later(seconds: int) -> None:
        office.attendance.now = lambda: NOW + timedelta(seconds=seconds)
        office.attendance.monotonic = lambda: float(seconds)

    with office.attendance.call(UID, POD, AgentView(1, Doing.RUNNING)):
        later(10)
    with office.attendance.call(UID, POD, AgentView(2, Doing.WAITING)) as waits:
        (agent,) = office.attendance.of(UID, [POD]).values()
        assert (agent.since, agent.said_at) == (NOW, NOW + timedelta(seconds=10))
        office.attendance.left(UID, POD, waits, None)
    later(20)
    with office.attendance.call(UID, POD, AgentView(2, Doing.WAITING)):
        (agent,) = office.attendance.of(UID, [POD]).values()
    assert (agent.since, agent.said_at) == (NOW + timedelta(seconds=20), NOW + timedelta(seconds=10))


async def test_one_connection_a_pod(office: Office) -> None:
    first = await held(office, RUNNING)
    second = asyncio.create_task(call(office, RUNNING))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the client calls a connection that is closed
        await first
    assert office.attendance.connected == 1
    decide(office, attempt=2, group=Group(created_in_attempt=1))
    assert (await second)[1]["attempt"] == 2


async def test_who_waits_keeps_no_stranger_out_and_is_not_swept_away(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 1)
    monkeypatch.setattr(listener, "CONNECTION_SECONDS", 0.1)
    monkeypatch.setattr(listener, "SWEEP_SECONDS", 0.05)
    waits = await held(office, RUNNING)
    async with asyncio.timeout(10):
        assert (await office.post({"attempt": 1, "ranks": {}}, office.token("pod-0-1")))[0] == 200
    await asyncio.sleep(0.3)
    decide(office, attempt=2, group=Group(created_in_attempt=1))
    assert (await waits)[0] == 200


async def test_the_same_connection_serves_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HOLD_SECONDS", 0.05)
    body = json.dumps(RUNNING).encode()
    reader, writer = await asyncio.open_connection("localhost", office.port, ssl=office.client)
    request = f"POST {SYNC_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {office.token()}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(3):
        writer.write(request.encode() + body)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length")
            )
            assert json.loads(await reader.readexactly(length))["attempt"] == 1
    writer.close()


def test_agents_of_pods_that_are_gone_are_forgotten(office: Office) -> None:
    with office.attendance.call(UID, POD, AgentView(1, Doing.RUNNING)):
        assert office.attendance.of(UID, ["another"]) == {}
    assert office.attendance.of(UID, [POD]) == {}


ABLE = {**RUNNING, "leave": {"leaving": False, "asked": False, "passed": None, "at": None}}


def on_the_way(**leave: Any) -> dict[str, Any]:
    return {**RUNNING, "leave": {**ABLE["leave"], **leave}}  # type: ignore[dict-item]  # a JSON object


async def test_all_hear_that_they_stop_and_then_after_which_step(office: Office) -> None:
    stop = CoordinatedStop(attempt=1, time=NOW)
    waits = await held(office, on_the_way(leaving=True))
    assert office.attendance.of(UID, [POD])[POD].leave == LeaveView(leaving=True)
    decide(office, coordinated_stop=stop)
    _, word = await waits
    assert (word["attempt"], word["stop"]) == (1, {"step": None})
    waits = await held(office, on_the_way(asked=True, passed=7))
    decide(office, coordinated_stop=stop.evolve(step=8))
    _, word = await waits
    assert word["stop"] == {"step": 8}
    waits = await held(office, on_the_way(asked=True, passed=7, at=8))
    decide(office)
    await asyncio.sleep(0.05)
    assert not waits.done()
    decide(office, coordinated_stop=None)
    _, word = await waits
    assert "stop" not in word


async def test_each_step_on_the_way_is_news_once(office: Office) -> None:
    office.scene = office.scene.with_status(coordinated_stop=CoordinatedStop(attempt=1, time=NOW))
    for leave in ({"asked": True, "passed": 7}, {"asked": True, "passed": 7}, {"asked": True, "passed": None}):
        waits = await held(office, on_the_way(**leave))
        waits.cancel()
        await until(lambda: office.attendance.connected == 0)
    # The last two differ, and each comes over a connection of its own: three times back, and twice gone.
    assert len(office.news) == 6


@pytest.mark.parametrize("body", [RUNNING, FAILED], ids=["takes no part", "has ended"])
async def test_who_takes_no_part_in_a_stop_hears_nothing_of_it(office: Office, body: Any) -> None:
    office.scene = office.scene.with_status(coordinated_stop=CoordinatedStop(attempt=1, time=NOW, step=8))
    waits = await held(office, body)
    await asyncio.sleep(0.05)
    assert not waits.done()
    waits.cancel()


@pytest.mark.parametrize(
    "leave", [{"passed": -2}, {"passed": 1.5}, {"passed": 2**60}, {"at": -1}, {"leaving": "yes"}, {"asked": 1}, 7]
)
async def test_nonsense_about_a_stop(office: Office, leave: Any) -> None:
    status, said = await call(office, {**RUNNING, "leave": leave})
    assert (status, said["reason"]) == (400, "Malformed")
    assert said["message"].startswith("leave")
    assert office.attendance.connected == 0


async def test_who_waits_tells_when_it_is_prepared(office: Office) -> None:
    office.scene = office.scene.with_status(attempt=2, group=Group(created_in_attempt=1))
    for told in ({"prepared": False}, {"prepared": False}, {}):
        waits = await held(office, WAITING | told)
        assert office.attendance.of(UID, [POD])[POD].prepared is (not told)
        waits.cancel()
        await until(lambda: office.attendance.connected == 0)
    # Each comes over a connection of its own: three times back, and twice gone.
    assert len(office.news) == 6
    status, said = await call(office, WAITING | {"prepared": 1})
    assert (status, said["message"].partition(":")[0]) == (400, "prepared")
