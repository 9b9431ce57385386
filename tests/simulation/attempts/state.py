"""What exists in the simulation of attempts, and how the operator sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

from tests.simulation.attempts.agent import Agent
from tests.support.jobs import NOW, SUPERVISED, UID, spec
from trainyard.api.recovery import RestartScope
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.scaling.group_size import largest_allowed
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_views import AgentView, PodView, WorkerReport
from trainyard.scheduling.placement import placement_order

ELASTIC = {"shrinkAfterSeconds": 20, "growAfterSeconds": 10}
SIZES: tuple[Mapping[str, object], ...] = ({**ELASTIC, "maxReplicas": 4}, {**ELASTIC, "sizes": [1, 2, 4]})
PLENTY = 100


@dataclass(slots=True)
class State:
    """All that exists, and how it looks."""

    random: Random
    workers: int
    takes_part: bool = False
    """Whether the program asks whether to stop."""
    elastic: Mapping[str, object] | None = None
    min_restart_scope: RestartScope = RestartScope.PROCESS
    restartable: bool = False
    """Whether the cluster has rules by which containers restart."""
    room: int = PLENTY
    """So many pods find a place."""
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: dict[str, PodView] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    """Nodes that do not answer."""
    cut_off: set[str] = field(default_factory=set)
    """Pods that were on such, until their agents call again: they may be given up, and meet no worker at the rendezvous that they know."""
    service: bool = False
    now: datetime = NOW
    made: int = 0
    agent_views: dict[str, AgentView] = field(default_factory=dict)
    """What the operator's process has in its memory."""
    coordinator_up_since: datetime = NOW
    begun: dict[int, set[str]] = field(default_factory=dict)
    """The rendezvous that the ranks of each attempt received."""
    sizes: dict[int, int] = field(default_factory=dict)
    """The group size that the ranks of each attempt received."""
    resized_in_place: int = 0
    """Starts of ranks in a container that had run an attempt of another size."""
    joined: int = 0
    """Starts of ranks in a container that had waited while the others trained on."""
    shrunk: int = 0
    """How often the group became healthy with fewer workers than requested."""
    stopped: dict[int, set[int]] = field(default_factory=dict)
    """After which step ranks of each attempt have ended because all were to."""
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    """The reports of steps that the operator's process has in its memory."""
    trains: int = 0
    """The attempt that did the last step."""
    first: int = 0
    """Its first step."""
    step: int = 0
    """Its last one."""
    furthest: int = 0
    """The last that any attempt did."""
    placed: bool = False
    """Whether ranks follow the placement of workers, where the group is large enough."""
    ranks: dict[int, dict[int, int]] = field(default_factory=dict)
    """The place in the order of ranks that each worker received, by attempt."""
    restarted: int = 0
    """Starts of ranks in a container that was restarted in its pod."""
    in_place: int = 0
    """Starts of ranks in a container that had run an earlier attempt."""

    @property
    def job(self) -> JobView:
        """The job, as it is stored."""
        return JobView(
            UID,
            "lab",
            "train",
            1,
            1,
            spec(
                self.workers,
                template=SUPERVISED,
                recovery={"maxRestarts": 10_000, "noProgressLimit": 10_000, "minRestartScope": self.min_restart_scope},
                **({"elastic": self.elastic} if self.elastic else {}),
            ),
            self.status,
        )

    @property
    def snapshot(self) -> Snapshot:
        """What the operator sees."""
        pods = tuple(self.pods.values())
        agent_views = {uid: agent for uid, agent in self.agent_views.items() if uid in self.pods}
        seen = Snapshot(
            self.job,
            pods,
            self.service,
            agent=True,
            reports=tuple(self.reports.values()),
            agents=agent_views,
            coordinator_up_since=self.coordinator_up_since,
        )
        return replace(seen, order_by_placement=placement_order(seen, lambda _: ()))

    @property
    def well(self) -> bool:
        """Whether all ranks of the current attempt run, and the status says so."""
        running = [
            a.ranks for uid, a in self.agents.items() if uid in self.pods and self.pods[uid].node not in self.silent
        ]
        # Those that are to join have no ranks, and no place.
        running = [ranks for ranks in running if ranks is not None] if self.room < self.workers else running
        size = largest_allowed(self.job, min(self.workers, self.room)) or self.workers
        return running == [self.status.attempt] * size and self.status.phase == "Running"
