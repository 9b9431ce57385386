"""Random schedules: hypothesis chooses what users, workers, nodes, the network and the operator's own life do next.

After each step some time passes. At the end all troubles stop, and everything must come to rest.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from tests.simulation.engine import stored_objects
from tests.simulation.engine.cluster_controllers import NODES
from tests.simulation.engine.convergence import come_to_rest
from tests.simulation.engine.engine_simulation import NAMESPACE, EngineSimulation
from tests.simulation.engine.invariants import InvariantError, described
from tests.simulation.engine.network_faults import ANY, Fault, Planned
from tests.simulation.engine.server import INVALID_IMAGE
from tests.simulation.engine.stored_objects import JOBS_PLACE, PODS_PLACE, SERVICES_PLACE
from tests.support.fake_cluster import Json

NUMBER = st.integers(0, 7)
PAUSE = st.sampled_from([0.0, 0.02, 0.2, 1.0, 4.0, 35.0, 110.0])
PLURALS = st.sampled_from(["pods", "trainingjobs", "services"])
PEER_LOST = '{"trainyard":1,"kind":"failed","exitCode":1,"peerLost":true}\nRuntimeError: Connection closed by peer'
"""As the agent tells it."""
MOST_JOBS = 3
LONGEST_START = 12.0
LONGEST_SLOW = 20.0
"""Seconds that a slow request takes, at most."""

LIFECYCLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "worker 0 decides": {"success": "Worker0"},
    "cleans all": {"cleanPods": "All"},
    "cleans none": {"cleanPods": "None", "success": "Worker0"},
    "short-lived": {"ttlSecondsAfterFinished": 20},
    "gone at once": {"ttlSecondsAfterFinished": 0, "cleanPods": "None"},
    "has a deadline": {"activeDeadlineSeconds": 60},
    "must start soon": {"startupDeadlineSeconds": 15},
    "begins suspended": {"suspend": True},
}
VERBS = st.sampled_from(
    [ANY, "POST", "POST pods", "PUT", "DELETE", "GET", "WATCH", "POST events", "POST services", "WATCH pods"]
)


class Schedule(RuleBasedStateMachine):
    """One cluster, one operator, and up to three jobs."""

    processes = 1
    finished = 0
    """Schedules that came to their end."""

    def __init__(self) -> None:
        super().__init__()
        self.world: EngineSimulation | None = None
        self.broken = False

    @initialize(seed=st.integers(0, 2**16), replicas=st.integers(1, 3), lifecycle=st.sampled_from([*LIFECYCLES]))
    def the_world_begins(self, seed: int, replicas: int, lifecycle: str) -> None:
        self.world = EngineSimulation(seed, self.processes)
        self.user_creates(0.2, replicas, 10, lifecycle, 0)

    # Users

    @rule(
        pause=PAUSE,
        replicas=st.integers(1, 3),
        restarts=st.sampled_from([10, 0, 1, 2]),
        lifecycle=st.sampled_from([*LIFECYCLES]),
        oddity=st.integers(0, 9),
    )
    def user_creates(self, pause: float, replicas: int, restarts: int, lifecycle: str, oddity: int) -> None:
        def act(world: EngineSimulation) -> None:
            taken = {stored_objects.name(job) for job in world.server.cluster.held(JOBS_PLACE)}
            free = [name for name in ("a", "b", "c")[:MOST_JOBS] if name not in taken]
            if not free:
                return
            container = {"name": "main", "image": INVALID_IMAGE if oddity == 9 else "example.com/trainer:1"}
            spec: Json = {
                "framework": "none",
                "replicas": replicas,
                "recovery": {"maxRestarts": restarts},
                "lifecycle": LIFECYCLES[lifecycle],
                "template": {"spec": {"containers": [container]}},
                **({"elastic": {"sizes": [1, 2, 4]}} if oddity in {6, 7} else {}),
            }
            if oddity == 8:
                spec["managedBy"] = "example.com/other"
            with world.server.acting("user") as cluster:
                cluster.create(JOBS_PLACE, NAMESPACE, {"metadata": {"name": free[0]}, "spec": spec})

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER, replicas=st.integers(1, 4))
    def user_scales(self, pause: float, which: int, replicas: int) -> None:
        self._change(pause, which, lambda _: {"replicas": replicas})

    @rule(pause=PAUSE, which=NUMBER)
    def user_suspends_or_resumes(self, pause: float, which: int) -> None:
        self._change(pause, which, lambda job: {"lifecycle": {"suspend": not stored_objects.lifecycle(job, "suspend")}})

    @rule(pause=PAUSE, which=NUMBER, again=st.booleans(), foreground=st.booleans())
    def user_deletes(self, pause: float, which: int, *, again: bool, foreground: bool) -> None:
        """And creates one with the same name again, perhaps."""

        def act(world: EngineSimulation) -> None:
            job = self._picked(which, world.server.cluster.held(JOBS_PLACE))
            if job is None or stored_objects.going(job):
                return
            if foreground:
                world.life.delete_in_foreground(job)
                return
            if again:
                self._replace(world, job)
            else:
                world.life.delete(JOBS_PLACE, job, "user", force=True)

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER, slowed=st.sampled_from(["DELETE pods", "POST pods", "PUT trainingjobs"]))
    def user_replaces_a_job_that_restarts(self, pause: float, which: int, slowed: str) -> None:
        """By one of the same name, while the operator is amid its work on the old one, and slow."""

        def act(world: EngineSimulation) -> None:
            pod = self._running(which)
            job = world.laws.job(stored_objects.owner(pod)) if pod else None
            if pod is None or job is None or stored_objects.going(job):
                return
            world.network_faults.planned.append(Planned(Fault.SLOW, slowed))
            world.life.end(pod, 1)
            world.run(0.5)
            if world.laws.job(stored_objects.uid(job)) is not None:
                self._replace(world, job)

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER, force=st.booleans())
    def user_deletes_a_pod(self, pause: float, which: int, *, force: bool) -> None:
        def act(world: EngineSimulation) -> None:
            if pod := self._picked(which, world.pods()):
                world.life.delete(PODS_PLACE, pod, "user", force=force)

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER)
    def user_deletes_a_service(self, pause: float, which: int) -> None:
        def act(world: EngineSimulation) -> None:
            if service := self._picked(which, world.server.cluster.held(SERVICES_PLACE)):
                world.life.delete(SERVICES_PLACE, service, "user")

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER)
    def user_restores_a_backup(self, pause: float, which: int) -> None:
        """Of the cluster's objects, which come without their status."""

        def act(world: EngineSimulation) -> None:
            job = self._picked(which, world.server.cluster.held(JOBS_PLACE))
            if job is not None:
                with world.server.acting("user") as cluster:
                    cluster.replace(JOBS_PLACE, NAMESPACE, stored_objects.name(job), {"status": {}}, "status")

        self._then(pause, act)

    # Workers

    @rule(
        pause=PAUSE,
        which=NUMBER,
        code=st.sampled_from([1, 137]),
        message=st.sampled_from(["", PEER_LOST]),
        with_others=st.booleans(),
    )
    def worker_fails(self, pause: float, which: int, code: int, message: str, *, with_others: bool) -> None:
        """And takes the others with it, perhaps."""

        def act(world: EngineSimulation) -> None:
            pod = self._running(which)
            if pod is None:
                return
            world.life.end(pod, code, message)
            if with_others:
                world.run(world.random.choice([0.0, 0.5, 2.0]))
                for other in self._all_running(stored_objects.owner(pod)):
                    world.life.end(other, 1, PEER_LOST)

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER, alone=st.booleans())
    def worker_succeeds(self, pause: float, which: int, *, alone: bool) -> None:
        """One of them, or all of a job."""

        def act(world: EngineSimulation) -> None:
            pod = self._running(which)
            if pod is None:
                return
            world.life.end(pod, 0)
            for other in [] if alone else self._all_running(stored_objects.owner(pod)):
                world.life.end(other, 0)

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER, how=st.sampled_from(["evicted", "pressed out", "lost", "full"]))
    def worker_is_taken_away(self, pause: float, which: int, how: str) -> None:
        def act(world: EngineSimulation) -> None:
            pod = self._running(which)
            if pod is None:
                return
            if how == "evicted":
                world.life.evict(pod, "EvictionByEvictionAPI")
            elif how == "lost":
                world.life.end(pod, 137, reason=stored_objects.LOST_CONTAINER)
            else:
                world.life.press_out(pod, of_itself=how == "full")

        self._then(pause, act)

    @rule(pause=PAUSE, how_many=st.integers(1, 3), images=st.booleans())
    def pods_do_not_start(self, pause: float, how_many: int, *, images: bool) -> None:
        def act(world: EngineSimulation) -> None:
            world.life.no_images = images and not world.life.no_images
            world.life.refusals = 0 if images else how_many

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER)
    def node_is_lost(self, pause: float, which: int) -> None:
        def act(world: EngineSimulation) -> None:
            node = NODES[which % len(NODES)]
            if len(world.life.lost) < len(NODES) - 1 and node not in world.life.lost:
                world.life.lose(node)

        self._then(pause, act)

    @rule(pause=PAUSE, rebooted=st.booleans())
    def node_comes_back(self, pause: float, *, rebooted: bool) -> None:
        def act(world: EngineSimulation) -> None:
            for node in sorted(world.life.lost)[:1]:
                world.life.come_back(node, rebooted=rebooted)

        self._then(pause, act)

    # The network and the API server

    @rule(
        pause=PAUSE,
        fault=st.sampled_from([*Fault]),
        verb=VERBS,
        skip=st.integers(0, 4),
        times=st.sampled_from([1, 2, 5]),
    )
    def requests_go_wrong(self, pause: float, fault: Fault, verb: str, skip: int, times: int) -> None:
        self._then(pause, lambda world: world.network_faults.planned.append(Planned(fault, verb, skip, times)))

    @rule(pause=PAUSE, plural=PLURALS, seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def watch_lags(self, pause: float, plural: str, seconds: float) -> None:
        self._then(pause, lambda world: world.network_faults.lag.update({plural: seconds}))

    @rule(pause=PAUSE, plural=PLURALS, how_many=st.integers(1, 3), repeated=st.booleans())
    def events_are_lost_or_repeated(self, pause: float, plural: str, how_many: int, *, repeated: bool) -> None:
        def act(world: EngineSimulation) -> None:
            (world.network_faults.repeats if repeated else world.network_faults.drops)[plural] = how_many

        self._then(pause, act)

    @rule(pause=PAUSE, plural=PLURALS, how=st.sampled_from(["cut", "ended", "silent", "expired"]))
    def watch_breaks(self, pause: float, plural: str, how: str) -> None:
        self._then(pause, lambda world: world.break_watches(plural, how))

    @rule(pause=PAUSE, plural=PLURALS, seconds=st.sampled_from([1.0, 10.0, 60.0]))
    def lists_are_stale(self, pause: float, plural: str, seconds: float) -> None:
        def act(world: EngineSimulation) -> None:
            world.network_faults.stale[plural] = seconds
            world.break_watches(plural, "expired")

        self._then(pause, act)

    @rule(pause=PAUSE, room=st.integers(0, 4), webhook=st.booleans())
    def pods_are_refused(self, pause: float, room: int, *, webhook: bool) -> None:
        """By a quota or a webhook; or no longer so."""

        def act(world: EngineSimulation) -> None:
            world.network_faults.quota = None if webhook or world.network_faults.quota is not None else room
            world.network_faults.webhook_denies = webhook and not world.network_faults.webhook_denies

        self._then(pause, act)

    # The operator

    @rule(
        pause=PAUSE,
        which=NUMBER,
        fuse=st.integers(0, 60),
        again=st.sampled_from([None, None, 0, 5, 25]),
        downtime=st.sampled_from([0.0, 1.0, 40.0]),
    )
    def operator_dies(self, pause: float, which: int, fuse: int, again: int | None, downtime: float) -> None:
        """At one of its next callbacks, and soon after its next start once more, perhaps."""

        def act(world: EngineSimulation) -> None:
            world.victim, world.fuse, world.downtime = which % self.processes, fuse, downtime
            world.next_fuses = [] if again is None else [again]

        self._then(pause, act)

    @rule(pause=PAUSE, which=NUMBER)
    def operator_is_updated(self, pause: float, which: int) -> None:
        self._then(pause, lambda world: world.stop(which % self.processes))

    @rule(pause=PAUSE, which=NUMBER, seconds=st.sampled_from([1.0, 8.0, 14.0, 40.0]))
    def operator_is_frozen(self, pause: float, which: int, seconds: float) -> None:
        self._then(pause, lambda world: world.freeze(which % self.processes, seconds))

    # The end

    @override
    def teardown(self) -> None:
        """Everything comes to rest."""
        if self.world is None:
            return
        try:
            if not self.broken:
                self._then(0.0, come_to_rest)
                type(self).finished += 1
        finally:
            self.world.close()

    # How

    def _then(self, pause: float, act: Callable[[EngineSimulation], object]) -> None:
        world = self.world
        assert world is not None
        try:
            act(world)
            world.run(pause)
        except InvariantError as broken:
            self.broken = True
            broken.add_note(f"at {world.time.now:.3f} s; the last writes were\n{described(world.laws.history)}")
            raise

    def _change(self, pause: float, which: int, fields: Callable[[Json], Json]) -> None:
        def act(world: EngineSimulation) -> None:
            job = self._picked(which, world.server.cluster.held(JOBS_PLACE))
            if job is not None and not stored_objects.going(job):
                with world.server.acting("user") as cluster:
                    cluster.merge(JOBS_PLACE, NAMESPACE, stored_objects.name(job), {"spec": fields(job)})

        self._then(pause, act)

    @staticmethod
    def _replace(world: EngineSimulation, job: Json) -> None:
        world.life.delete(JOBS_PLACE, job, "user", force=True)
        with world.server.acting("user") as cluster:
            manifest = {"metadata": {"name": stored_objects.name(job)}, "spec": job["spec"]}
            cluster.create(JOBS_PLACE, NAMESPACE, manifest)

    @staticmethod
    def _picked(which: int, things: list[Json]) -> Json | None:
        return things[which % len(things)] if things else None

    def _running(self, which: int) -> Json | None:
        """A running pod; where there is none, everybody gets the time to bring some up."""
        assert self.world is not None
        if not self._all_running(None):
            self.world.run(LONGEST_START)
        return self._picked(which, self._all_running(None))

    def _all_running(self, job: str | None) -> list[Json]:
        assert self.world is not None
        life = self.world.life
        return [
            pod
            for pod in self.world.pods()
            if stored_objects.running(pod)
            and not life.is_lost(pod)
            and (job is None or stored_objects.owner(pod) == job)
        ]
