"""What must always hold of a job, whatever happens around it: random faults, then quiet, then rest."""

from dataclasses import replace

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from tests.simulation.plan_simulation import DELETED, NODES, TERMINAL, PlanSimulation
from tests.support.jobs import spec
from trainyard.api.scheduling import GangScheduler
from trainyard.api.status import ConditionType as C
from trainyard.domain.state.gang_schedulers import NO_GANG_SCHEDULERS, GangSchedulers
from trainyard.domain.state.worker_views import PodIssue, PodView

NATIVE = GangScheduler.NATIVE
PICK = st.integers(min_value=0, max_value=8)
EVICTED = PodIssue("EvictionByEvictionAPI", "the node is drained")
REFUSED = PodIssue("UnexpectedAdmissionError", "no device is healthy")
PEER_LOST = '{"trainyard":1,"kind":"failed","exitCode":1,"peerLost":true}\nRuntimeError: Connection closed by peer'
"""As the agent tells it."""
LONGEST_WAY_TO_REST = 400


class Faults(RuleBasedStateMachine):
    """One job in a cluster where everything goes wrong."""

    world: PlanSimulation

    @initialize(
        replicas=st.integers(1, 3),
        restarts=st.integers(0, 2),
        success=st.sampled_from(["AllWorkers", "Worker0"]),
        clean=st.sampled_from(["Running", "All", "None"]),
        gangs=st.booleans(),
    )
    def job_is_created(self, replicas: int, restarts: int, success: str, clean: str, *, gangs: bool) -> None:
        lifecycle = {"success": success, "cleanPods": clean}
        schedulers = GangSchedulers((NATIVE,), frozenset({NATIVE})) if gangs else NO_GANG_SCHEDULERS
        named = {"gang": NATIVE if gangs else "none"}
        job = spec(replicas, recovery={"maxRestarts": restarts}, lifecycle=lifecycle, scheduling=named)
        self.world = PlanSimulation(job, gang_schedulers=schedulers)

    def picked(self, number: int, *phases: str) -> PodView | None:
        pods = [p for p in self.world.pods.values() if not phases or p.phase in phases]
        return pods[number % len(pods)] if pods else None

    def strike(self, pod: PodView) -> None:
        self.world.attempt(pod.attempt).struck = True

    def picked_running(self, number: int) -> PodView | None:
        """A running pod; where there is none, everybody gets the time to bring some up."""
        if not self.picked(number, "Running"):
            self.everybody_works()
        pod = self.picked(number, "Running")
        return None if pod is None or pod.node in self.world.lost else pod

    @rule()
    def operator_looks(self) -> None:
        self.world.observe()
        self.world.run_pass()

    @rule()
    def everybody_works(self) -> None:
        for _ in range(5):
            self.world.work()
            self.world.observe()
            self.world.run_pass()

    @rule(survives=st.integers(0, 6))
    def operator_dies_between_two_writes(self, survives: int) -> None:
        self.world.observe()
        self.world.run_pass(survives)

    @rule()
    def operator_decides_on_what_it_saw_before(self) -> None:
        self.world.run_pass()

    @rule()
    def cluster_works(self) -> None:
        self.world.work()

    @rule(seconds=st.sampled_from([1, 2, 5, 31, 61, 300]))
    def time_passes(self, seconds: int) -> None:
        self.world.tick(seconds)

    @rule(number=PICK)
    def worker_succeeds(self, number: int) -> None:
        if pod := self.picked_running(number):
            self.world.end(pod, 0, "")

    @rule(number=PICK, code=st.sampled_from([1, 137]), message=st.sampled_from(["", PEER_LOST]))
    def worker_fails(self, number: int, code: int, message: str) -> None:
        if pod := self.picked_running(number):
            self.world.end(pod, code, message)

    @rule(number=PICK, seen=st.booleans())
    def worker_fails_and_all_the_others_with_it(self, number: int, *, seen: bool) -> None:
        self.worker_fails(number, 1, "")
        if seen:
            self.operator_looks()
        for pod in [*self.world.pods.values()]:
            if pod.phase == "Running" and pod.node not in self.world.lost:
                self.world.end(pod, 1, PEER_LOST)

    @rule()
    def all_workers_succeed(self) -> None:
        for pod in [*self.world.pods.values()]:
            if pod.phase == "Running" and pod.node not in self.world.lost:
                self.world.end(pod, 0, "")

    @rule(number=PICK)
    def pod_is_deleted(self, number: int) -> None:
        if pod := self.picked(number):
            self.strike(pod)
            self.world.ask_to_go(pod, DELETED)

    @rule(number=PICK)
    def pod_is_deleted_by_force(self, number: int) -> None:
        if pod := self.picked(number):
            self.strike(pod)
            self.world.remove(pod)

    @rule(number=PICK)
    def pod_is_evicted(self, number: int) -> None:
        if pod := self.picked(number, "Pending", "Running"):
            self.strike(pod)
            self.world.ask_to_go(pod, EVICTED)

    @rule(number=PICK)
    def pod_is_refused_by_its_node(self, number: int) -> None:
        pod = self.picked(number, "Pending")
        if pod and pod.deletion_time is None:
            self.strike(pod)
            self.world.put(pod_refused(pod))

    @rule(number=PICK)
    def node_of_a_worker_is_lost(self, number: int) -> None:
        worker = self.picked_running(number)
        if worker is None or worker.node is None or len(self.world.lost) == len(NODES) - 1:
            return
        node = worker.node
        self.world.lost.add(node)
        for pod in [*self.world.pods.values()]:
            if pod.node == node:
                self.strike(pod)
                self.world.ask_to_go(pod, PodIssue("DeletionByTaintManager", "its node is lost"))
                self.world.put(replace(self.world.pods[pod.uid], node_lost_at=self.world.now))

    @rule()
    def nodes_come_back(self) -> None:
        self.world.come_back()

    @rule(replicas=st.integers(1, 4))
    def job_is_scaled(self, replicas: int) -> None:
        self.world.change_spec(replicas=replicas)

    @rule()
    def suspension_is_set_or_taken_back(self) -> None:
        lifecycle = self.world.spec.lifecycle
        changed = {**lifecycle.model_dump(by_alias=True), "suspend": not lifecycle.suspend}
        self.world.change_spec(lifecycle=changed)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def no_two_live_pods_share_a_rank(self) -> None:
        world = self.world
        live = [p.index for p in world.pods.values() if p.phase not in TERMINAL and p.node not in world.lost]
        assert len(live) == len(set(live))

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def status_does_not_contradict_itself(self) -> None:
        status = self.world.status
        assert not (status.holds(C.COMPLETE) and status.holds(C.FAILED))
        assert (status.completion_time is not None) is status.finished
        assert not (status.holds(C.RUNNING) and (status.finished or status.suspended))
        restarts = status.restarts
        counted = restarts.failures + restarts.disruptions - status.restart_count
        assert counted == int(status.holds(C.FAILED) and restarts.failures > self.world.spec.recovery.max_restarts)

    @override
    def teardown(self) -> None:
        """When the faults stop, the job comes to rest by its own events and alarms alone."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.observe()
        world.dirty = True
        for _ in range(LONGEST_WAY_TO_REST):
            world.work()
            if world.dirty:
                world.observe()
                world.run_pass()
            elif world.wake_at:
                world.tick((world.wake_at - world.now).total_seconds())
                world.dirty = True
            else:
                break
        assert not world.dirty
        # Rest is not a wait for something of which no event will come.
        world.tick(3600)
        world.observe()
        decided = world.decide()
        assert not decided.actions
        assert not decided.events
        assert decided.status == world.status
        self.rests_as_it_should()

    def rests_as_it_should(self) -> None:
        world, status = self.world, self.world.status
        there = [p for p in world.pods.values() if p.node not in world.lost]
        used = not (status.finished or status.suspended)
        dead = [p for p in world.pods.values() if p.node in world.lost and p.deletion_time]
        assert not [p for p in dead if not used or p.attempt < status.attempt], "removed when their time was over"
        assert status.suspended is (world.spec.lifecycle.suspend and not status.finished)
        if not used:
            assert not world.pod_groups, "they would hold the capacity of a queue"
        if status.suspended:
            assert not there
        elif not status.finished:
            assert status.holds(C.RUNNING)
            assert sorted((p.index, p.attempt, p.workers) for p in there) == [
                (i, status.attempt, world.spec.replicas) for i in range(world.spec.replicas)
            ]
            assert all(p.running or (p.exit and p.exit.code == 0) for p in there)


def pod_refused(pod: PodView) -> PodView:
    """The pod, as a kubelet leaves it that cannot give it what it asks for."""
    return PodView(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        resource_version=pod.resource_version + 1,
        job_uid=pod.job_uid,
        attempt=pod.attempt,
        index=pod.index,
        workers=pod.workers,
        phase="Failed",
        ended=True,
        node=pod.node,
        scheduled=True,
        issue=REFUSED,
    )


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
