"""The rest of the cluster: scheduler, kubelets, node controller and garbage collector. They do their work in their own time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.simulation.engine import stored_objects
from tests.simulation.engine.server import Server
from tests.simulation.engine.stored_objects import JOBS_PLACE, PODS_PLACE, SERVICES_PLACE
from tests.simulation.engine.virtual_time import Time
from tests.support.fake_cluster import Change, Json, Place
from trainyard.kube.resource import PODS

NODES = ("node0", "node1", "node2")
SKEW = {"node0": 0.0, "node1": -3.0, "node2": 300.0}
"""Whole seconds by which the clocks of nodes are wrong."""
UNREACHABLE_AFTER = 40.0
EVICTED_AFTER = 30.0
KUBELET, CONTROLLER = "kubelet", "controller"


@dataclass(slots=True)
class ClusterControllers:
    """All of them. `on_change` tells them what there is to do."""

    server: Server
    time: Time
    random: Random
    lost: set[str]
    """The nodes that report to no controller."""
    given_up: set[str]
    """UIDs of pods that were to go while their node was lost."""
    no_images: bool = False
    """The registry is away."""
    refusals: int = 0
    """So many pods to come are refused by their nodes."""
    slots: int | None = None
    """Pods that all nodes together have room for; None: any number."""
    _lost_since: dict[str, float] = field(default_factory=dict)

    def on_change(self, change: Change) -> None:
        """Something was written."""
        old, new = change.old, change.new
        if change.place == JOBS_PLACE and new is None and old is not None:
            self._soon(10, lambda: self._collect(stored_objects.uid(old)))
        elif change.place in {PODS_PLACE, SERVICES_PLACE} and old is None and new is not None:
            self._created(change.place, new)
        elif change.place == PODS_PLACE and old and new and _must_stop(new) and not _must_stop(old):
            self._soon(20, lambda: self._end_by_deadline(stored_objects.uid(new)))
        elif change.place == PODS_PLACE and old and new and stored_objects.going(new) and not stored_objects.going(old):
            if stored_objects.node(new) in self.lost:
                self.given_up.add(stored_objects.uid(new))
            self._soon(20, lambda: self._stop(stored_objects.uid(new)))

    def _created(self, place: Place, obj: Json) -> None:
        owner = stored_objects.owner(obj)
        if owner and not any(stored_objects.uid(job) == owner for job in self.server.cluster.held(JOBS_PLACE)):
            self._soon(10, lambda: self._collect(owner))
        if place == PODS_PLACE:
            self._soon(1, lambda: self._place(stored_objects.uid(obj)))

    # The scheduler.

    def _place(self, uid: str) -> None:
        pod = self.pod(uid)
        if pod is None or stored_objects.going(pod) or stored_objects.node(pod):
            return
        there = [node for node in NODES if node not in self.lost]
        with self.server.acting(CONTROLLER) as cluster:
            if not there or self._full():
                self._say(pod, condition={"type": "PodScheduled", "status": "False", "reason": "Unschedulable"})
                self._soon(20, lambda: self._place(uid))
                return
            cluster.merge(
                PODS, _namespace(pod), stored_objects.name(pod), {"spec": {"nodeName": self.random.choice(there)}}
            )
        self._soon(2, lambda: self._start(uid))

    def _full(self) -> bool:
        pods = self.server.cluster.held(PODS_PLACE)
        placed = sum(stored_objects.node(pod) is not None and not stored_objects.ended(pod) for pod in pods)
        return self.slots is not None and placed >= self.slots

    # The kubelets.

    def _start(self, uid: str) -> None:
        pod = self.pod(uid)
        if (
            pod is None
            or stored_objects.going(pod)
            or stored_objects.ended(pod)
            or stored_objects.running(pod)
            or self.is_lost(pod)
        ):
            return
        if self.refusals:
            self.refusals -= 1
            self._say(pod, phase="Failed", reason="UnexpectedAdmissionError", message="no device is healthy")
        elif self.no_images:
            waiting = {"reason": "ErrImagePull", "message": "the registry is away"}
            self._say(pod, containerStatuses=[{"name": "main", "state": {"waiting": waiting}}])
            self._soon(30, lambda: self._start(uid))
        else:
            self._say(
                pod,
                phase="Running",
                containerStatuses=[{"name": "main", "state": {"running": {}}}],
                condition={"type": "Ready", "status": "True"},
                also={"type": "ContainersReady", "status": "True"},
            )

    def end(self, pod: Json, code: int, message: str = "", reason: str = "") -> None:
        """A container ends. Its node says so, and a moment later that the pod is over."""
        node = stored_objects.node(pod)
        assert node is not None
        terminated = {
            "exitCode": code,
            "reason": reason or ("Error" if code else "Completed"),
            "message": message,
            "finishedAt": self.server.stamp(SKEW[node]),
        }
        statuses = [{"name": "main", "state": {"terminated": terminated}}]
        ready = {
            "condition": {"type": "Ready", "status": "False"},
            "also": {"type": "ContainersReady", "status": "False"},
        }
        phase = "Failed" if code else "Succeeded"
        if self.random.random() < 0.5:
            self._say(pod, phase=phase, containerStatuses=statuses, **ready)
            return
        self._say(pod, containerStatuses=statuses, **ready)
        uid = stored_objects.uid(pod)

        def over() -> None:
            if (found := self.pod(uid)) and not self.is_lost(found):
                self._say(found, phase=phase)

        self._soon(0.5, over)

    def press_out(self, pod: Json, *, of_itself: bool) -> None:
        """The node is short of memory and ends the pod; `of_itself`: the pod has filled its volume."""
        node = stored_objects.node(pod)
        assert node is not None
        terminated = {"exitCode": 137, "reason": "Error", "finishedAt": self.server.stamp(SKEW[node])}
        short = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        self._say(
            pod,
            phase="Failed",
            reason="Evicted",
            message="Usage of EmptyDir volume exceeds the limit." if of_itself else "The node was low on memory.",
            containerStatuses=[{"name": "main", "state": {"terminated": terminated}}],
            condition={"type": "Ready", "status": "False"},
            also=None if of_itself else short,
        )

    def _stop(self, uid: str) -> None:
        """A pod that has to go goes, where its node is there: by the signal, or of its own in some way."""
        pod = self.pod(uid)
        if pod is None or self.is_lost(pod):
            return
        if not stored_objects.ended(pod) and stored_objects.running(pod) and self.random.random() < 0.5:
            self.end(pod, self.random.choice([143, 137, 0, 1]))
        self._soon(0.2, lambda: self._remove(uid))

    def _end_by_deadline(self, uid: str) -> None:
        """A pod whose `activeDeadlineSeconds` has passed stops and stays, where its node is there and it still runs."""
        pod = self.pod(uid)
        if pod is None or self.is_lost(pod) or stored_objects.ended(pod) or stored_objects.going(pod):
            return
        if stored_objects.running(pod):
            self.end(pod, 143)
        else:
            self._say(pod, phase="Failed", reason="DeadlineExceeded")

    def _remove(self, uid: str) -> None:
        pod = self.pod(uid)
        if pod is not None and not self.is_lost(pod):
            with self.server.acting(KUBELET) as cluster:
                cluster.finish_deletion(PODS, _namespace(pod), stored_objects.name(pod))

    # Nodes.

    def lose(self, node: str) -> None:
        """A node is cut off, or without power. After a while its pods are deleted, which no kubelet receives."""
        self.lost.add(node)
        self._lost_since[node] = since = self.time.now
        self.given_up |= {stored_objects.uid(pod) for pod in self.pods_on(node) if stored_objects.going(pod)}

        def doubt() -> None:
            if node in self.lost and self._lost_since[node] == since:
                for pod in self.pods_on(node):
                    if stored_objects.running(pod):
                        self._say(pod, condition={"type": "Ready", "status": "False"})

        self.time.after(UNREACHABLE_AFTER, doubt)

        def evict() -> None:
            if node in self.lost and self._lost_since[node] == since:
                for pod in self.pods_on(node):
                    self.evict(pod, "DeletionByTaintManager")

        self.time.after(UNREACHABLE_AFTER + EVICTED_AFTER, evict)

    def come_back(self, node: str, *, rebooted: bool) -> None:
        """A node is there again, with its containers or without them."""
        self.lost.discard(node)
        for pod in self.pods_on(node):
            uid = stored_objects.uid(pod)
            if rebooted and stored_objects.running(pod):
                self.end(pod, 137, reason=stored_objects.LOST_CONTAINER)
            if (end := stored_objects.end(pod)) and stored_objects.phase(pod) not in stored_objects.TERMINAL:
                self._say(pod, phase="Failed" if end["exitCode"] else "Succeeded")
            if not rebooted and stored_objects.running(pod):
                self._say(pod, condition={"type": "Ready", "status": "True"})
            if stored_objects.going(pod):
                self._soon(2, partial(self._stop, uid))
            elif _must_stop(pod):
                self._soon(2, partial(self._end_by_deadline, uid))
            elif not stored_objects.running(pod):
                self._soon(2, partial(self._start, uid))

    def evict(self, pod: Json, reason: str) -> None:
        """By the eviction API, preemption or a taint: a condition, and then a deletion."""
        self._say(pod, condition={"type": "DisruptionTarget", "status": "True", "reason": reason, "message": reason})
        self.delete(PODS_PLACE, pod, CONTROLLER)

    # The garbage collector.

    def _collect(self, job: str) -> None:
        for place in (PODS_PLACE, SERVICES_PLACE):
            for obj in self.server.cluster.held(place):
                if stored_objects.owner(obj) == job:
                    self.delete(place, obj, CONTROLLER)

    def delete_in_foreground(self, job: Json) -> None:
        """The job is marked, then its dependents go, then the job."""
        mark = {"deletionTimestamp": self.server.stamp(), "finalizers": ["foregroundDeletion"]}
        uid, name = stored_objects.uid(job), stored_objects.name(job)
        with self.server.acting(CONTROLLER) as cluster:
            cluster.merge(JOBS_PLACE, _namespace(job), name, {"metadata": mark})

        def go_on() -> None:
            found = next((j for j in self.server.cluster.held(JOBS_PLACE) if stored_objects.uid(j) == uid), None)
            if found is None:
                return
            self._collect(uid)
            if any(stored_objects.owner(pod) == uid for pod in self.server.cluster.held(PODS_PLACE)):
                self._soon(5, go_on)
                return
            with self.server.acting(CONTROLLER) as cluster:
                cluster.finish_deletion(JOBS_PLACE, _namespace(found), name)

        self._soon(2, go_on)

    # What there is.

    def pod(self, uid: str) -> Json | None:
        """The pod with this UID."""
        return next((pod for pod in self.server.cluster.held(PODS_PLACE) if stored_objects.uid(pod) == uid), None)

    def pods_on(self, node: str) -> list[Json]:
        """All pods of a node."""
        return [pod for pod in self.server.cluster.held(PODS_PLACE) if stored_objects.node(pod) == node]

    def is_lost(self, pod: Json) -> bool:
        """Whether its node is lost."""
        return stored_objects.node(pod) in self.lost

    def delete(self, place: Place, obj: Json, actor: str, *, force: bool = False) -> None:
        """Somebody deletes an object; by force without waiting for its node."""
        with self.server.acting(actor) as cluster:
            if not force and (place != PODS_PLACE or not stored_objects.going(obj)):
                self.server.delete(place, _namespace(obj), stored_objects.name(obj))
            elif force:
                cluster.delete(place, _namespace(obj), stored_objects.name(obj), None, 0)

    def _say(self, pod: Json, condition: Json | None = None, also: Json | None = None, **status: object) -> None:
        """A pod's status, the rest of it as it is."""
        found = self.pod(stored_objects.uid(pod))
        if found is None:
            return
        if condition is not None:
            conditions = [{"lastTransitionTime": self.server.stamp(), **each} for each in (condition, also) if each]
            kinds = {each["type"] for each in conditions}
            others = [c for c in found["status"].get("conditions", ()) if c["type"] not in kinds]
            status["conditions"] = [*others, *conditions]
        actor = KUBELET if condition is None else CONTROLLER
        with self.server.acting(actor) as cluster:
            cluster.set_status(PODS, _namespace(pod), stored_objects.name(pod), **status)

    def _soon(self, longest: float, do: Callable[[], None]) -> None:
        """In a while, `longest` seconds at most, usually much sooner."""
        self.time.after(longest * self.random.random() ** 3, do)


def _must_stop(pod: Json) -> bool:
    return bool(pod["spec"].get("activeDeadlineSeconds") == 1)


def _namespace(obj: Json) -> str:
    return str(obj["metadata"]["namespace"])
