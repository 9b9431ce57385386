"""Workers with agents, their pods, and an operator that can die at any moment: who begins which attempt, and when.

Everything is reported in the worst order: agents call when they like, connections break, pods go, nodes fall silent. What really runs is
kept here, and each start of a rank is held against it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tests.simulation.attempts.agent import Agent
from tests.simulation.attempts.goodput import miscounted
from tests.simulation.attempts.state import State
from tests.support.jobs import UID, stored
from tests.support.phase_transitions import objection
from trainyard.api.agent_protocol import AgentState, Failure, StopProgress, SyncRequest
from trainyard.api.internal_status import CoordinatedStop
from trainyard.api.recovery import RESTART_CODE, SAVED_CODE
from trainyard.coordinator import assignments
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.decisions import CreateService, CreateWorker, DeletePod
from trainyard.domain.plan import plan
from trainyard.domain.state.object_names import worker_pod
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import AgentView, PodIssue, PodView, RankProgress, WorkerReport
from trainyard.scheduling.placement import follows_placement

GRACE = timedelta(seconds=30)
KILLED = timedelta(seconds=5)
RANKS_WAIT = timedelta(seconds=20)
CHECKPOINT_EVERY = 10
"""Steps, each of a second."""
NODES = ("node0", "node1", "node2", "node3")


class InvariantError(AssertionError):
    """A law does not hold."""


@dataclass(slots=True)
class AttemptSimulation(State):
    """All that happens."""

    # The operator.

    def work(self) -> None:
        """A pass, which can end before all of it is done."""
        decided = plan(self.snapshot, self.now)
        if decided != plan(self.snapshot, self.now):
            raise InvariantError("a plan that is made twice is not the same")
        actions = list(decided.actions)
        for action in actions[: self.random.randint(0, len(actions)) if self.random.random() < 0.2 else None]:
            match action:
                case CreateService():
                    self.service = True
                case CreateWorker(index, attempt, workers):
                    self._make(index, attempt, workers)
                case DeletePod(_, uid, _):
                    self.ask_to_go(uid)
                case _:
                    raise InvariantError(f"{action} was not requested")
        if not actions and decided.status != self.status:
            if why := objection(self.status, decided.status) or miscounted(self.status, decided.status, self.furthest):
                raise InvariantError(why)
            stops = decided.status.internal.coordinated_stop != self.status.internal.coordinated_stop
            self.status = stored(decided.status)
            if stops:
                self._check_stop()
            if stops and self.random.random() < 0.8:
                self._wake()

    def die(self) -> None:
        """The operator's process ends, and another one begins: it knows what is stored."""
        self.agent_views.clear()
        self.reports.clear()
        self.coordinator_up_since = self.now

    def _check_stop(self) -> None:
        stop = self.status.stopping
        if stop is None or stop.step is None:
            return
        beyond = [uid for uid, a in self.agents.items() if a.ranks == stop.attempt and a.passed >= stop.step]
        if beyond:
            raise InvariantError(f"all are to stop after step {stop.step}, and {beyond[0]} is beyond it")

    def _wake(self) -> None:
        """All agents hear the news at once, and tell what they make of it."""
        for _ in range(2):
            for uid in self.random.sample([*self.pods], len(self.pods)):
                if self.random.random() < 0.95:
                    self.call(uid)

    def _make(self, index: int, attempt: int, workers: int) -> None:
        if any(pod.name == worker_pod("train", index, attempt) for pod in self.pods.values()):
            raise InvariantError(f"a second pod for worker {index} of attempt {attempt}")
        self.made += 1
        uid = f"pod-{self.made}"
        self.pods[uid] = PodView(
            uid,
            "lab",
            worker_pod("train", index, attempt),
            1,
            UID,
            attempt,
            index,
            workers,
            "Pending",
            restartable=self.restartable,
            ranks_ordered=follows_placement(self.job, workers, by_default=self.placed),
        )
        # What the manifest says of it, at this moment.
        joins = self.status.internal.group is not None or self.status.is_joining(index, attempt)
        waits = joins or self.pods[uid].ranks_ordered
        self.agents[uid] = Agent(attempt, AgentState.WAITING if waits else AgentState.RUNNING, None, workers)

    # The nodes.

    def run_pods(self) -> None:
        """Scheduler and kubelets do what they have to."""
        for uid, pod in [*self.pods.items()]:
            if pod.node in self.silent or self.random.random() < 0.5:
                continue
            if pod.deletion_time:
                self._end_in_time(uid, pod.deletion_time)
            elif not pod.scheduled:
                self._schedule(uid, pod)
            elif pod.phase == "Pending":
                runs = replace(pod, phase="Running", running=True, running_since=self.now, ready=True)
                self.pods[uid] = replace(runs, ip=f"10.0.0.{self.made}-{uid}")
                if self.agents[uid].state is AgentState.RUNNING:
                    self._number(uid, self.agents[uid].attempt, pod.index)
                    self._begin(uid, self.agents[uid].attempt, f"worker-0 of {self.agents[uid].attempt}")
            elif self.agents[uid].state is AgentState.RESTARTING and not pod.ended:
                self._restart(uid, pod)

    def _end_in_time(self, uid: str, end: datetime) -> None:
        agent = self.agents[uid]
        if agent.leave and agent.state is AgentState.RUNNING and self.now < end:
            agent.leave = replace(agent.leave, leaving=True)
            if self.random.random() < 0.9:
                return
        self._stop(uid, agent.exit.code if agent.exit else 143)
        if self.random.random() < 0.7:
            self._remove(uid)

    def _restart(self, uid: str, pod: PodView) -> None:
        """What a node makes of a container that has ended for that: it starts it, takes its time, or is too old to know."""
        agent = self.agents[uid]
        if agent.stubborn or (fate := self.random.random()) < 0.1:
            # It is never started.
            agent.stubborn = True
        elif fate < 0.2:
            self.pods[uid] = replace(pod, ended=True, phase="Failed", exit=Exit(self.now, RESTART_CODE, "Error", ""))
        elif fate < 0.6:
            agent.state, agent.restarted = AgentState.WAITING, True
            self.pods[uid] = replace(pod, running=True, ready=True, running_since=self.now)

    def reclaim(self, room: int) -> None:
        """The cluster takes slots away, whichever worker holds them."""
        self.room = room
        placed = [uid for uid, pod in self.pods.items() if pod.scheduled and not (pod.ended or pod.deletion_time)]
        for uid in self.random.sample(placed, max(0, len(placed) - room)):
            self.ask_to_go(uid)

    def _schedule(self, uid: str, pod: PodView) -> None:
        if sum(other.scheduled and not other.ended for other in self.pods.values()) >= self.room:
            none = PodIssue("Unschedulable", "0/4 nodes are available: 4 Insufficient nvidia.com/gpu")
            self.pods[uid] = replace(pod, issue=none)
            return
        there = [node for node in NODES if node not in self.silent]
        self.pods[uid] = replace(pod, scheduled=True, node=self.random.choice(there), issue=None)

    def ask_to_go(self, uid: str) -> None:
        """A deletion is asked for."""
        pod = self.pods.get(uid)
        if pod is None or pod.deletion_time:
            return
        by = PodIssue("Deleted", "the pod was deleted")
        self.pods[uid] = replace(pod, disruption=by, disrupted_at=self.now, deletion_time=self.now + GRACE)

    def resize(self, workers: int) -> None:
        """The user, or an autoscaler, requests another number of workers."""
        self.workers = workers

    def end(self, uid: str, code: int) -> None:
        """The container ends of itself, its agent with it."""
        if uid in self.pods and self.pods[uid].running and self.pods[uid].node not in self.silent:
            self._stop(uid, code)

    def fall_silent(self, node: str) -> None:
        """A node is cut off; what runs there runs on without effect."""
        self.silent.add(node)
        for uid, pod in self.pods.items():
            if pod.node == node:
                self.cut_off.add(uid)
            if pod.node == node and uid in self.agent_views:
                self.agent_views[uid] = replace(
                    self.agent_views[uid], left_at=self.now, vanished=self.random.random() < 0.5
                )

    def answer(self, node: str) -> None:
        """It is there again."""
        self.silent.discard(node)

    def _stop(self, uid: str, code: int) -> None:
        pod, agent = self.pods[uid], self.agents[uid]
        if pod.ended:
            return
        agent.ranks = agent.leave = None
        end = Exit(self.now, code, "Error", "") if pod.running else None
        self.pods[uid] = replace(pod, running=False, ready=False, ended=True, phase="Failed", exit=end)
        self.hang_up(uid)

    def _remove(self, uid: str) -> None:
        del self.pods[uid], self.agents[uid]
        self.agent_views.pop(uid, None)

    # The agents.

    def hang_up(self, uid: str) -> None:
        """A connection is closed."""
        if uid in self.agent_views:
            self.agent_views[uid] = replace(self.agent_views[uid], left_at=self.now)

    def fail(self, uid: str, *, victim: bool = False) -> None:
        """A rank fails; the agent notices and ends the others of its worker."""
        agent = self.agents[uid]
        if agent.ranks is None or agent.state is not AgentState.RUNNING or self.pods[uid].node in self.silent:
            return
        message = "Connection closed by peer" if victim else "boom"
        agent.state, agent.ranks, agent.leave = AgentState.FAILED, None, None
        agent.exit = Exit(self.now, 1, "Error", message, peer_lost=victim)

    def advance(self, uid: str) -> None:
        """The ranks of a worker make a step, if those of all others have made the one before: and go on, wait, or end."""
        agent = self.agents[uid]
        peers = [other for other in self.agents.values() if other.ranks == agent.ranks]
        if agent.ranks is None or len(peers) < agent.size or any(other.passed < agent.passed for other in peers):
            return
        leave, done = agent.leave, agent.passed + 1
        if leave and leave.at is not None and done >= leave.at:
            self.stopped.setdefault(agent.ranks, set()).add(done)
            if len(self.stopped[agent.ranks]) > 1:
                raise InvariantError(f"attempt {agent.ranks} stops after steps {self.stopped[agent.ranks]}")
            agent.state, agent.ranks, agent.leave = AgentState.FAILED, None, None
            agent.exit = Exit(self.now, SAVED_CODE, "Error", "")
        elif not (leave and leave.asked) or (agent.asked_at and self.now - agent.asked_at >= RANKS_WAIT):
            agent.passed = done

    def call(self, uid: str) -> None:
        """An agent tells what it does and hears a word, if there is one for it."""
        pod, agent = self.pods[uid], self.agents[uid]
        if not pod.running or pod.ended or pod.node in self.silent or self._is_replaced(uid, agent):
            return
        self.cut_off.discard(uid)
        failed = Failure(code=agent.exit.code, message=agent.exit.message) if agent.exit else None
        leave = agent.leave
        request = SyncRequest(attempt=agent.attempt, state=agent.state, failure=failed, leave=leave)
        if agent.ranks == self.trains == self.status.attempt:
            ran = RankProgress(pod.index, self.step, "train", step_seconds=1.0, first=self.first)
            self.reports[uid] = WorkerReport(self.trains, pod.index, (ran,), self.now)
        before = self.agent_views.get(uid)
        since = before.since if before and before.left_at is None else self.now
        self.agent_views[uid] = AgentView(agent.attempt, agent.state, agent.exit, self.now, since, leave=leave)
        try:
            word = assignments.assignment(pod, self.job)
        except RefusedError as refusal:
            self.agent_views.pop(uid)
            agent.replaced_at = self.now
            if refusal.reason is not RejectionReason.REPLACED or agent.ranks is None:
                self._stop(uid, agent.exit.code if agent.exit else 143)
            return
        if word.is_news(request):
            self._receive(uid, word)

    def _receive(self, uid: str, word: assignments.Assignment) -> None:
        pod, agent = self.pods[uid], self.agents[uid]
        if word.attempt > agent.attempt:
            if agent.stubborn and agent.ranks is not None:
                return
            agent.attempt, agent.state, agent.ranks, agent.exit = word.attempt, AgentState.WAITING, None, None
            agent.leave = None
            # Told by the next call; until then what was said before stands.
            if word.restart and self.random.random() < 0.9:
                self._end_to_restart(uid)
        elif word.run and agent.state is AgentState.WAITING:
            size = int(word.environment["TRAINYARD_REPLICAS"])
            self.in_place += pod.attempt < word.attempt
            self.restarted += agent.restarted
            agent.restarted = False
            self.resized_in_place += agent.has_run and size != agent.size
            self.joined += not agent.has_run and pod.attempt < word.attempt
            agent.state, agent.size = AgentState.RUNNING, size
            self._number(uid, word.attempt, int(word.environment["NODE_RANK"]))
            self._begin(uid, word.attempt, word.environment["MASTER_ADDR"])
        elif agent.leave:
            self._follow(agent, agent.leave, word.stop)

    def _end_to_restart(self, uid: str) -> None:
        """The agent says so, if the operator still hears it, and ends its container."""
        agent, pod = self.agents[uid], self.pods[uid]
        agent.state = AgentState.RESTARTING
        if uid in self.agent_views and self.random.random() < 0.9:
            self.agent_views[uid] = AgentView(
                agent.attempt, agent.state, reported_at=self.now, since=self.agent_views[uid].since
            )
        self.hang_up(uid)
        self.pods[uid] = replace(pod, running=False, ready=False)

    def _is_replaced(self, uid: str, agent: Agent) -> bool:
        if agent.replaced_at is not None and self.now - agent.replaced_at > GRACE:
            self._stop(uid, 143)
        return agent.replaced_at is not None

    def _follow(self, agent: Agent, leave: StopProgress, stop: CoordinatedStop | None) -> None:
        """What an agent does with its ranks at a word of a stop. Told by the next call."""
        if stop is None:
            agent.leave, agent.asked_at = StopProgress(leave.leaving), None
        elif not leave.asked:
            agent.leave, agent.asked_at = replace(leave, asked=True, passed=agent.passed), self.now
        elif stop.step is not None and agent.passed >= stop.step:
            agent.leave = StopProgress(leave.leaving, asked=True)
        elif stop.step is not None:
            agent.leave = replace(leave, at=stop.step)

    def _number(self, uid: str, attempt: int, rank: int) -> None:
        """A worker gets its place in the order of ranks. The laws."""
        agent, index = self.agents[uid], self.pods[uid].index
        given = self.ranks.setdefault(attempt, {})
        others = [other for other, its in given.items() if its == rank and other != index]
        if others or given.setdefault(index, rank) != rank or (rank == 0) != (index == 0):
            raise InvariantError(f"worker {index} of attempt {attempt} begins as {rank}, and there are {given}")
        same_size = self.sizes.get(agent.begun) == agent.size
        if agent.begun == attempt - 1 and same_size and agent.rank not in {None, rank}:
            raise InvariantError(f"worker {index} keeps its pod, and is {rank} after it was {agent.rank}")
        agent.rank, agent.begun = rank, attempt

    def _begin(self, uid: str, attempt: int, where: str) -> None:
        """Ranks start. The laws."""
        for other, agent in self.agents.items():
            if other not in self.cut_off and agent.ranks is not None and agent.ranks < attempt:
                raise InvariantError(f"{uid} begins attempt {attempt} while {other} runs attempt {agent.ranks}")
        twin = [
            other
            for other, agent in self.agents.items()
            if other not in {uid, *self.cut_off}
            and agent.ranks == attempt
            and self.pods[other].index == self.pods[uid].index
        ]
        if twin:
            raise InvariantError(f"{uid} begins attempt {attempt} as {twin[0]} runs it in the same place")
        self.begun.setdefault(attempt, set()).add(where)
        if len(self.begun[attempt]) > 1:
            raise InvariantError(f"the workers of attempt {attempt} meet at {self.begun[attempt]}")
        agent = self.agents[uid]
        if self.sizes.setdefault(attempt, agent.size) != agent.size:
            raise InvariantError(
                f"{uid} of attempt {attempt} knows of {agent.size} workers, others of {self.sizes[attempt]}"
            )
        pod, whole = self.pods[uid], self.status.size or self.pods[uid].workers
        if attempt == self.status.attempt and (agent.size != whole or pod.index >= whole):
            raise InvariantError(f"worker {pod.index} begins as one of {agent.size}, and attempt {attempt} has {whole}")
        agent.ranks, agent.passed, agent.asked_at, agent.has_run = attempt, -1, None, True
        agent.leave = StopProgress() if self.takes_part else None

    def tick(self, seconds: float) -> None:
        """Time passes. A group of which all ranks run does a step each second."""
        self.now += timedelta(seconds=seconds)
        for uid, pod in self.pods.items():
            # Kubelets that are there kill in time what does not end by itself.
            if pod.deletion_time and pod.deletion_time + KILLED <= self.now and pod.node not in self.silent:
                self._stop(uid, 137)
        running = [agent.ranks for uid, agent in self.agents.items() if agent.ranks and uid not in self.cut_off]
        steps, attempt = int(seconds), self.status.attempt
        if steps and running and running == [attempt] * self.sizes.get(attempt, 0):
            if self.trains != attempt:
                self.trains, self.step = attempt, self.step // CHECKPOINT_EVERY * CHECKPOINT_EVERY
                self.first = self.step + 1
            self.step += steps
            self.furthest = max(self.furthest, self.step)

    def train(self, seconds: float) -> None:
        """A healthy group trains for so long, reports it, and the operator receives the report."""
        self.tick(seconds)
        for uid in self.pods:
            self.call(uid)
        self.work()
