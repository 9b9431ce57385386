"""One job of a framework, from the manifests of the recipes: it trains without end, through one fault after another."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import yaml

from dev.demo.commands import DemoError
from dev.demo.run import kill
from tests.cluster.kube import Json, Kube, main_container, train_on_cpus
from tests.cluster.recipe_jobs import FOLDER

T = TypeVar("T")
START_SECONDS, RECOVERY_SECONDS, END_SECONDS = 180.0, 240.0, 240.0
ENDLESS = 1_000_000
"""Steps that no run of these tests completes."""
MORE_STEPS = 200
"""Steps after the last fault, until the job completes."""
STEP = re.compile(r"\bstep (\d+) loss (\d+\.\d+)")
RESUMED = re.compile(r"resuming from step (\d+)")


@dataclass(frozen=True, slots=True)
class Framework:
    """A recipe, and what its processes mean."""

    recipe: str
    learnt: str
    """A pattern for the result in the log of the reporter."""
    least: float = 0.0
    most: float = 100.0
    more: tuple[str, ...] = ()
    """Arguments beside the number of steps."""
    steps: str = "--steps"
    leader: str = "worker-0"
    """The member whose loss is the worst: a chief, a head, a launcher, or worker 0 as the place where all ranks meet."""
    alone: bool = False
    """Whether workers restart alone, while the others go on."""
    killed: str = ""
    """What is killed in worker 1; empty: the program."""
    behind_shell: bool = False
    """Whether a shell starts the command, and exits with 0 whatever the command does."""

    @property
    def name(self) -> str:
        """The name of the job."""
        return f"{self.recipe}-shell" if self.behind_shell else self.recipe

    @property
    def program(self) -> str:
        """The path of the program."""
        words = yaml.safe_load((FOLDER / f"{self.recipe}.yaml").read_text())
        return next(str(word) for word in main_container(words)["command"] if word.endswith(".py"))

    def arguments(self, steps: int) -> tuple[str, ...]:
        """Return what follows the arguments of the recipe."""
        return *self.more, self.steps, str(steps)

    def manifest(self, steps: int) -> Json:
        """Return the job with so many steps. Workers have a node each, and other roles share the first node."""
        job: Json = yaml.safe_load((FOLDER / f"{self.recipe}.yaml").read_text())
        main_container(job)["args"] += self.arguments(steps)
        spec = job["spec"]
        job["metadata"]["name"] = self.name
        spec["recovery"] = {"maxRestarts": 20, "forceDeleteAfterSeconds": 20}
        spec["template"]["spec"]["terminationGracePeriodSeconds"] = 5
        for role in spec.get("roles", ()):
            role["affinity"] = on_node("In")
        if spec.get("roles"):
            spec["template"]["spec"]["affinity"] = on_node("NotIn")
        spec["template"]["spec"]["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"trainyard.dev/job-name": self.name, "trainyard.dev/role": "worker"}},
            }
        ]
        if self.behind_shell:
            main = main_container(job)
            main["command"] = ["sh", "-c", f'{shlex.join(main["command"])} "$@"; exit 0', "sh"]
            spec["recovery"]["hiddenFailures"] = "Fail"
            spec["processesPerReplica"] = 1
        return train_on_cpus(job)


def on_node(operator: str) -> Json:
    """Return the affinity of pods that run on the first node (`In`), or on the others (`NotIn`)."""
    name = {"key": "kubernetes.io/hostname", "operator": operator, "values": ["node1"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [name]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


class Training:
    """The job of a framework in the cluster."""

    def __init__(self, kube: Kube, framework: Framework) -> None:
        self.kube, self.framework, self.name = kube, framework, framework.name

    def ready(self) -> None:
        """Have the job train: start it where it has not, or has ended."""
        if self.kube.find("tj", self.name) and "completionTime" in self.status():
            self.kube.run("delete", "tj", self.name)
        if not self.kube.find("tj", self.name):
            self.kube.apply(self.framework.manifest(ENDLESS))
        self.trains(1, seconds=START_SECONDS)

    def status(self) -> Json:
        return self.kube.status(self.name)

    def pods(self) -> dict[str, Json]:
        """Return the newest pod of each member, such as `worker-1`."""
        pods = sorted(self.kube.pods(self.name), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        labels = "trainyard.dev/role", "trainyard.dev/index"
        return {"-".join(pod["metadata"]["labels"][label] for label in labels): pod for pod in pods}

    def each(self, value: Callable[[Json], T]) -> dict[str, T]:
        """Return a value of each member's newest pod."""
        return {member: value(pod) for member, pod in self.pods().items()}

    def pod(self, member: str) -> str:
        return str(self.pods()[member]["metadata"]["name"])

    def log(self) -> str:
        """Return the log of the member that reports how well it learns; empty while it has none."""
        reporter = self.framework.leader
        try:
            return self.kube.run("logs", self.pod(reporter), "--tail=-1")
        except (DemoError, KeyError):
            return ""

    def step(self) -> int:
        """Return the last step in the log; 0 where there is none."""
        return max((int(step) for step, _ in STEP.findall(self.log())), default=0)

    def trains(
        self, attempt: int, *, since: str = "", resumed: bool = False, seconds: float = RECOVERY_SECONDS
    ) -> None:
        """Wait until this attempt, or a later one, runs and has a step in the log that follows the log `since`.

        `resumed`: the step has to follow a line about the checkpoint that the program has loaded.
        """

        def seen() -> bool:
            status, log = self.status(), self.log()
            new = log.removeprefix(since)
            if resumed:
                new = new[found.end() :] if (found := RESUMED.search(new)) else ""
            return status.get("phase") == "Running" and status["attempt"] >= attempt and STEP.search(new) is not None

        self.kube.until(seen, seconds, f"{self.name} to train in attempt {attempt}")

    def kill(self, member: str, argument: str) -> None:
        """Kill the processes that have this argument, or one that ends with it. A shell is spared."""
        # Spaces separate the arguments of a rank that started warm.
        self.kube.run("exec", self.pod(member), "--", *kill(rf"{re.escape(argument)}[ \0]"))

    def suspend(self) -> None:
        """Suspend the job, and wait until it has no pods."""
        self._patch({"op": "add", "path": "/spec/lifecycle", "value": {"suspend": True}})
        self.kube.wait_phase(self.name, "Suspended", 120)
        self.kube.until(lambda: not self.kube.pods(self.name), 120, "the pods of the suspended job to be gone")

    def resume(self, steps: int) -> None:
        """Resume a suspended job with this number of steps."""
        arguments = main_container(self.framework.manifest(steps))["args"]
        self._patch({"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments})
        self._patch({"op": "replace", "path": "/spec/lifecycle", "value": {"suspend": False}})

    def completes(self) -> str:
        """Wait until the job is complete, and return the reporter's log."""
        self.kube.until(lambda: "completionTime" in self.status(), END_SECONDS, f"{self.name} to end")
        log = self.log()
        assert self.status()["phase"] == "Complete", log[-4000:]
        return log

    def _patch(self, operation: Json) -> None:
        self.kube.run("patch", "tj", self.name, "--type=json", "-p", json.dumps([operation]))
