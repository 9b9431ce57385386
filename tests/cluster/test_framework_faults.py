"""Each framework goes through the same faults as torch: what restarts, what is counted and why, and where the training goes on.

`make test-long` runs all of them; `FRAMEWORKS='ray' make cluster-test` (or another pattern) those of that name. One job of each framework
goes through all faults, and completes at the end.
"""

import fnmatch
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

import pytest

from dev.demo import install
from dev.demo.commands import show
from dev.demo.target import python
from tests.cluster.elastic_group import counts
from tests.cluster.framework_job import MORE_STEPS, RESUMED, Framework, Training
from tests.cluster.kube import Json, Kube
from tests.cluster.operators import Operators
from tests.cluster.recipe_jobs import load

SIGNALS, POINTS, ERROR = r"([\d.]+)% of signals", r"([\d.]+)% of points", r"mean error of ([\d.]+)"
FRAMEWORKS = (
    Framework("accelerate", SIGNALS, least=90),
    Framework("tensorflow", ERROR, most=0.1),
    Framework("tensorflow-servers", ERROR, most=0.1, leader="chief-0", alone=True),
    Framework("jax", ERROR, most=0.1),
    Framework("mpi", POINTS, least=90, more=("--pause", "0.05")),
    Framework("deepspeed", ERROR, most=0.1, more=("--save-every", "100")),
    Framework("megatron", ERROR, most=0.1, more=("--save-every", "200")),
    Framework("ray", POINTS, least=90, leader="head-0", alone=True, killed="raylet"),
    Framework("xgboost", POINTS, least=90, steps="--rounds", more=("--pause", "0.1")),
    Framework("lightgbm", POINTS, least=90, steps="--rounds", more=("--pause", "0.1")),
)


class Fault(Enum):
    """What happens to a training. The order matters: failures without progress escalate the restart scope."""

    PROCESS = "a process is killed"
    LAUNCHER = "the launcher is killed"
    DAEMON = "the launcher says 0"
    OPERATORS = "a process and both operators are killed"
    POD = "a pod is deleted"
    LEADER = "the leader's pod is deleted"
    SERVER = "a parameter server's pod is deleted"
    NODE = "a node loses power"
    SUSPEND = "suspended and resumed, it completes"


ONLY = {Fault.LAUNCHER: {"mpi"}, Fault.DAEMON: {"mpi"}, Fault.SERVER: {"tensorflow-servers"}}
"""Faults that only some recipes have a target for."""
CHOSEN = [each for each in FRAMEWORKS if fnmatch.fnmatchcase(each.recipe, os.environ.get("FRAMEWORKS", "*"))]
CASES = [
    pytest.param(framework, fault, id=f"{framework.recipe}-{fault.value}")
    for framework in CHOSEN
    for fault in Fault
    if framework.recipe in ONLY.get(fault, {framework.recipe})
]
SHELLS = [
    replace(framework, behind_shell=True)
    for framework in CHOSEN
    if framework.recipe not in {"mpi", "tensorflow-servers"}
]
"""Frameworks whose command a shell may start. That of MPI has a launcher, which is one of the faults."""
LONG = pytest.mark.skipif(
    not (os.environ.get("LONG") or os.environ.get("FRAMEWORKS")), reason="takes minutes: make test-long"
)
pytestmark = LONG


@dataclass(frozen=True, slots=True)
class Expected:
    """What follows a fault."""

    failures: int = 0
    disruptions: int = 0
    attempts: int = 0
    replaced: frozenset[str] = frozenset()
    """The members that get new pods."""
    others: bool = False
    """Whether other members may get new pods too: the third loss within minutes escalates, unless the job ran for a minute."""
    container: str | None = None
    """The member whose container restarts."""


def expected(framework: Framework, fault: Fault, failures: int) -> Expected:
    """Return what follows this fault after so many failures, by what the framework's documentation says."""
    match fault:
        case Fault.PROCESS | Fault.OPERATORS if framework.alone:
            return Expected(container="worker-1")
        case Fault.DAEMON | Fault.OPERATORS if framework.recipe in ONLY[Fault.DAEMON]:
            # The third failure without progress, and the fourth. The first ones restart processes.
            return Expected(failures=1, attempts=1, container="worker-1" if failures > 1 else None)
        case Fault.PROCESS | Fault.OPERATORS | Fault.LAUNCHER | Fault.DAEMON:
            return Expected(failures=1, attempts=1)
        case Fault.POD | Fault.NODE if framework.alone:
            return Expected(disruptions=1, replaced=frozenset({"worker-1"}))
        case Fault.POD | Fault.NODE:
            replaced = frozenset({"worker-1"})
            return Expected(disruptions=1, attempts=1, replaced=replaced, others=fault is Fault.NODE)
        case Fault.LEADER:
            return Expected(disruptions=1, attempts=1, replaced=frozenset({framework.leader}))
        case Fault.SERVER:
            return Expected(disruptions=1, attempts=1, replaced=frozenset({"ps-0"}))
        case Fault.SUSPEND:
            return Expected()


@pytest.fixture(scope="module")
def jobs() -> dict[str, Training]:
    """The trainings that were started, by recipe."""
    return {}


@pytest.fixture
def training(recipes: Kube, jobs: dict[str, Training], framework: Framework) -> Training:
    """Return the job of the framework, which trains; the one of the framework before it is deleted."""
    for recipe in [*jobs]:
        if recipe != framework.recipe:
            recipes.run("delete", "tj", recipe, "--ignore-not-found")
            del jobs[recipe]
    if framework.recipe not in jobs:
        load(recipes.cluster, framework.manifest(1))
        jobs[framework.recipe] = Training(recipes, framework)
    jobs[framework.recipe].ready()
    return jobs[framework.recipe]


@pytest.mark.parametrize(("framework", "fault"), CASES)
def test_a_training_survives_a_fault(training: Training, framework: Framework, fault: Fault) -> None:
    if fault is Fault.SUSPEND:
        completes_after_suspension(training)
        return
    before, pods, log = training.status(), training.pods(), training.log()
    follows = expected(framework, fault, failures=before["restarts"]["failures"])
    attempt = before["attempt"] + follows.attempts
    with injected(training, fault):
        training.trains(attempt, since=log, resumed=bool(follows.attempts))
        # Where a member restarts alone, the others train on before its node counts as lost.
        training.kube.until(
            lambda: replaced_since(training, pods) >= follows.replaced, 120, f"new pods: {sorted(follows.replaced)}"
        )
        training.kube.until(lambda: len(training.kube.pods(training.name)) == len(pods), 120, "the old pods to be gone")
        new = replaced_since(training, pods)
        assert follows.others or new == follows.replaced
        restarts = {member: restarts_of(pod) + (member == follows.container) for member, pod in pods.items()}
        restarts |= dict.fromkeys(new, 0)
        training.kube.until(lambda: training.each(restarts_of) == restarts, 60, f"restarts of containers: {restarts}")
        training.kube.until(lambda: training.status()["readyReplicas"] == 2, 60, "both workers to be ready")
    training.trains(attempt, since=training.log())
    status = training.status()
    assert counts(status, before)[:2] == (follows.failures, follows.disruptions), status
    assert (status["attempt"], status["phase"]) == (attempt, "Running")
    if follows.failures:
        assert_culprit(status["lastFailure"], fault, pods)
    else:
        assert status.get("lastFailure") == before.get("lastFailure")


@pytest.mark.parametrize("framework", SHELLS, ids=lambda framework: framework.name)
def test_an_exit_with_0_hides_no_dead_rank(recipes: Kube, framework: Framework) -> None:
    load(recipes.cluster, framework.manifest(1))
    training = Training(recipes, framework)
    training.ready()
    before, pods, log = training.status(), training.pods(), training.log()
    hit = framework.leader if framework.alone else "worker-1"
    training.kill(hit, framework.program)
    training.trains(before["attempt"] + 1, since=log, resumed=True)
    status = training.status()
    assert counts(status, before)[:2] == (1, 0), status
    assert status["lastFailure"]["pod"] == pods[hit]["metadata"]["name"], status
    recipes.run("delete", "tj", framework.name)


def completes_after_suspension(training: Training) -> None:
    """Suspend the job and resume it with a number of steps that it soon reaches. Nothing is counted."""
    before, step, framework = training.status(), training.step(), training.framework
    training.suspend()
    training.resume(step + MORE_STEPS)
    log = training.completes()
    assert counts(training.status(), before)[:2] == (0, 0)
    assert training.status().get("lastFailure") == before.get("lastFailure")
    assert int(RESUMED.findall(log)[-1]) > 0, log[-4000:]
    assert framework.least < float(re.findall(framework.learnt, log)[-1]) < framework.most, log[-4000:]


def assert_culprit(failure: Json, fault: Fault, pods: dict[str, Json]) -> None:
    """Assert that the status names the member that was hit, and why it ended."""
    hit = "worker-0" if fault is Fault.LAUNCHER else "worker-1"
    assert failure["pod"] == pods[hit]["metadata"]["name"], failure
    assert "SIGKILL" in failure["message"], failure


@contextmanager
def injected(training: Training, fault: Fault) -> Iterator[None]:
    """Inject a fault. A node gets its power back at the end."""
    framework = training.framework
    if fault is Fault.OPERATORS:
        kill_operators(training.kube)
    if fault in {Fault.PROCESS, Fault.OPERATORS}:
        training.kill("worker-1", framework.killed or framework.program)
    elif fault is Fault.LAUNCHER:
        # `mpirun` runs this program. Its daemons have the name as a part of an argument.
        training.kill("worker-0", "prterun")
    elif fault is Fault.DAEMON:
        training.kill("worker-1", "prted")
    elif fault is Fault.NODE:
        with without_power(training.kube, training.pods()["worker-1"]["spec"]["nodeName"]):
            yield
        return
    else:
        member = {Fault.POD: "worker-1", Fault.LEADER: framework.leader, Fault.SERVER: "ps-0"}[fault]
        training.kube.delete_pod(training.pod(member))
    yield


def kill_operators(kube: Kube) -> None:
    """Kill both operators. Their pods go too, since the node would delay the start of containers that have exited before."""
    operators = Operators(kube)
    pods = operators.home.find_all("pods", install.OPERATORS[1])
    for pod in pods:
        os.kill(operators.process(pod["metadata"]["name"]), signal.SIGKILL)
    for pod in pods:
        operators.home.delete_pod(pod["metadata"]["name"], "--force", "--grace-period=0")


@contextmanager
def without_power(kube: Kube, node: str) -> Iterator[None]:
    """Cut the power of a node."""
    number = node.removeprefix("node")
    show([*python("dev.localcluster"), "node", "stop", number])
    try:
        yield
    finally:
        show([*python("dev.localcluster"), "node", "start", number])
        kube.run("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")


def replaced_since(training: Training, before: dict[str, Json]) -> frozenset[str]:
    """Return the members with other pods than before."""
    now = training.each(lambda pod: str(pod["metadata"]["uid"]))
    return frozenset(member for member, pod in before.items() if now.get(member) != pod["metadata"]["uid"])


def restarts_of(pod: Json) -> int:
    """Return how often the main container has restarted."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
