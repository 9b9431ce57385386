"""Every recipe runs as its TrainingJob of `examples/recipes`, and learns; after a fault it resumes from its checkpoint.

`make test` runs the sample, `make test-long` all of them; `RECIPES='stages*' make cluster-test` (or another pattern) those of that name.
"""

import fnmatch
import os
import re
import shutil
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
import yaml

from dev.demo.run import kill
from tests.cluster.kube import Json, Kube, main_container, train_on_cpus
from tests.cluster.recipe_jobs import FOLDER, load

SAMPLE = ("images", "characters-tensor", "xgboost", "mpi")
TIMEOUT_SECONDS = 420


class Fault(Enum):
    """The fault of worker 1, once three losses are in the log."""

    KILL = "kill -9 of its process"
    DELETE = "its pod is deleted"
    KILL_RAY = "kill -9 of Ray's process there"
    KILL_CLIENT = "kill -9 of Flower's SuperNode there, and the others go on"
    DELETE_HEAD = "the pod of the head or server is deleted"
    SUSPEND = "it is suspended and resumed"
    ALONE = "both, one after the other, and the others go on"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A TrainingJob of the folder."""

    name: str
    learnt: str
    """A pattern for the result in the log of the reporter; its last match counts."""
    least: float = 0.0
    most: float = 100.0
    fault: Fault | None = None
    more: tuple[str, ...] = ()
    """Arguments that make the run long enough for the fault."""
    reporter: str = "worker-0"
    """The member whose log has the result."""
    victim: str = "worker-1"
    """The member whose pod is deleted."""
    launcher: tuple[str, ...] = ()
    """What starts the program in place of Python."""

    def log(self, attempt: int = 1) -> tuple[str, ...]:
        """Return the command that prints the reporter's log."""
        return "logs", f"{self.name}-{self.reporter}-{attempt}", "--tail=-1"


PICTURES, POINTS, LOSS = r"([\d.]+)% of pictures", r"([\d.]+)% of points", r"loss (\d+\.\d+)"
NEW_POD_OF_REPORTER = {Fault.DELETE_HEAD, Fault.SUSPEND}
LOSSES = r"(?<!')\bloss\W+\d"
"""The losses that the program prints. Ray reports each loss again, and the first report precedes the first checkpoint."""
RECIPES = (
    Recipe("images", PICTURES, least=90, fault=Fault.DELETE, more=("--steps", "300")),
    # Guessing gives 2.6, how often each letter comes 2.3.
    Recipe("characters", LOSS, most=1.4, fault=Fault.DELETE),
    Recipe("characters-tensor", LOSS, most=1.4),
    Recipe("stages", LOSS, most=1.5, fault=Fault.DELETE, more=("--steps", "160")),
    Recipe("stages-3d", LOSS, most=1.5),
    # A constant zero gives 0.5.
    Recipe("parameter-server", LOSS, most=0.2, fault=Fault.DELETE, more=("--steps", "4000")),
    # After the first round it is 1.
    Recipe("diloco", LOSS, most=0.4, fault=Fault.DELETE, more=("--rounds", "60")),
    Recipe("powersgd", PICTURES, least=90),
    Recipe("large-batch", PICTURES, least=80),
    Recipe("accelerate", r"([\d.]+)% of signals", least=90, fault=Fault.KILL, more=("--steps", "600")),
    Recipe("accelerate-launch", r"([\d.]+)% of signals", least=90, fault=Fault.DELETE, more=("--steps", "600")),
    Recipe("deepspeed", r"mean error of ([\d.]+)", most=0.1, fault=Fault.KILL, more=("--steps", "600")),
    Recipe("megatron", r"mean error of ([\d.]+)", most=0.1, fault=Fault.KILL, more=("--steps", "3000")),
    Recipe("jax", r"mean error of ([\d.]+)", most=0.1, fault=Fault.KILL, more=("--steps", "2000")),
    Recipe("tensorflow", r"mean error of ([\d.]+)", most=0.1, fault=Fault.KILL, more=("--steps", "2000")),
    Recipe(
        "tensorflow-servers",
        r"mean error of ([\d.]+)",
        most=0.1,
        fault=Fault.ALONE,
        more=("--steps", "20000"),
        reporter="chief-0",
    ),
    Recipe("xgboost", POINTS, least=90, fault=Fault.KILL, more=("--rounds", "300", "--pause", "0.1")),
    Recipe("lightgbm", POINTS, least=90, fault=Fault.KILL, more=("--rounds", "300", "--pause", "0.1")),
    Recipe("mxnet", POINTS, least=90, fault=Fault.KILL, more=("--steps", "1000", "--pause", "0.02")),
    Recipe(
        "mxnet",
        POINTS,
        least=90,
        fault=Fault.DELETE,
        more=("--steps", "1000", "--pause", "0.02"),
        victim="server-0",
    ),
    Recipe(
        "mxnet",
        POINTS,
        least=90,
        fault=Fault.DELETE,
        more=("--steps", "1000", "--pause", "0.02"),
        victim="scheduler-0",
    ),
    Recipe(
        "paddle",
        r"mean error of ([\d.]+)",
        most=0.1,
        fault=Fault.KILL,
        more=("--steps", "1000", "--pause", "0.02"),
        launcher=("python3", "-m", "paddle.distributed.launch"),
    ),
    Recipe(
        "paddle", r"mean error of ([\d.]+)", most=0.1, fault=Fault.KILL, more=("--steps", "1000", "--pause", "0.02")
    ),
    Recipe("mpi", POINTS, least=90, fault=Fault.KILL, more=("--steps", "400", "--pause", "0.05")),
    Recipe("horovod", POINTS, least=90, fault=Fault.KILL, more=("--steps", "400", "--pause", "0.05")),
    Recipe("ray", POINTS, least=90, fault=Fault.KILL_RAY, more=("--steps", "1000"), reporter="head-0"),
    Recipe("ray", POINTS, least=90, fault=Fault.DELETE, more=("--steps", "1000"), reporter="head-0"),
    Recipe("ray", POINTS, least=90, fault=Fault.DELETE_HEAD, more=("--steps", "1000"), reporter="head-0"),
    Recipe("flower", POINTS, least=85, fault=Fault.KILL_CLIENT, reporter="server-0"),
    Recipe("flower", POINTS, least=85, fault=Fault.DELETE_HEAD, reporter="server-0"),
    Recipe("flower", POINTS, least=85, fault=Fault.SUSPEND, reporter="server-0"),
    Recipe("transformers", r"a loss of ([\d.]+)", most=0.3, fault=Fault.KILL),
    Recipe("lightning", POINTS, least=90, fault=Fault.KILL, more=("--epochs", "100")),
)


def chosen() -> list[Recipe]:
    """Return the recipes that match RECIPES; without it, the sample."""
    pattern = os.environ.get("RECIPES")
    if pattern is None:
        return [recipe for recipe in RECIPES if recipe.name in SAMPLE]
    found = [recipe for recipe in RECIPES if fnmatch.fnmatchcase(recipe.name, pattern)]
    if not found:
        names = ", ".join(recipe.name for recipe in RECIPES)
        raise pytest.UsageError(f"RECIPES={pattern} matches no recipe; there are {names}")
    return found


OF_FLOWER = pytest.mark.skipif(
    not any(recipe.name == "flower" for recipe in chosen()), reason="RECIPES does not select flower"
)


def manifest(recipe: Recipe) -> Json:
    """Return the manifest of the folder, with more arguments, for CPUs."""
    job: Json = yaml.safe_load((FOLDER / f"{recipe.name}.yaml").read_text())
    if recipe.more:
        main_container(job)["args"] += recipe.more
    if recipe.launcher:
        main_container(job)["command"][:1] = recipe.launcher
    return train_on_cpus(job)


@pytest.mark.parametrize("recipe", chosen(), ids=lambda recipe: recipe.name)
def test_a_recipe_learns(recipes: Kube, recipe: Recipe) -> None:
    job = manifest(recipe)
    load(recipes.cluster, job)
    recipes.apply(job)
    if recipe.fault:
        recipes.wait_phase(recipe.name, "Running", TIMEOUT_SECONDS)
        losses = partial(re.findall, LOSSES)
        recipes.until(lambda: len(losses(recipes.run(*recipe.log()))) >= 3, TIMEOUT_SECONDS, "three losses")
        inject(recipes, recipe)
    recipes.until(lambda: "completionTime" in recipes.status(recipe.name), TIMEOUT_SECONDS, f"{recipe.name} to end")
    status = recipes.status(recipe.name)
    log = recipes.run(*recipe.log(attempt=2 if recipe.fault in NEW_POD_OF_REPORTER else 1))
    assert status["phase"] == "Complete", log[-4000:]
    assert recipe.least < float(re.findall(recipe.learnt, log)[-1]) < recipe.most, log[-4000:]
    restarts = (status["restarts"]["failures"], status["restarts"]["disruptions"])
    assert restarts == (
        recipe.fault is Fault.KILL,
        recipe.fault in {Fault.DELETE, Fault.ALONE, Fault.DELETE_HEAD},
    ), status
    steps = [int(step) for step in re.findall(r"resuming from step (\d+)", log)]
    assert len(steps) == (recipe.fault not in {None, Fault.ALONE, Fault.KILL_CLIENT})
    assert all(steps)
    recipes.run("delete", "tj", recipe.name)


@OF_FLOWER
def test_failed_run_fails_although_command_says_0(recipes: Kube) -> None:
    job = manifest(Recipe("flower", POINTS, more=("--rounds", "0")))
    job["metadata"]["name"], job["spec"]["recovery"] = "no-rounds", {"maxRestarts": 0}
    load(recipes.cluster, job)
    recipes.apply(job)
    recipes.until(lambda: "completionTime" in recipes.status("no-rounds"), TIMEOUT_SECONDS, "the job to end")
    status = recipes.status("no-rounds")
    assert (status["phase"], status["lastFailure"]["pod"]) == ("Failed", "no-rounds-server-0-1"), status
    assert "finished:failed: ServerApp failed with exception: rounds must be 1 or more" in str(status["lastFailure"])
    recipes.run("delete", "tj", "no-rounds")


@OF_FLOWER
def test_clients_run_where_their_data_is(recipes: Kube) -> None:
    recipes.without_pod_security()
    data, job = yaml.safe_load_all((FOLDER.parent / "federated-sites.yaml").read_text())
    load(recipes.cluster, job)
    sites = [node["metadata"]["name"] for node in recipes.find_all("nodes") if "taints" not in node["spec"]][:2]
    recipes.run("label", "node", *sites, "example.com/site=")
    try:
        recipes.apply(data, job)
        losses = partial(re.findall, LOSSES)
        log = partial(recipes.run, "logs", "federated-sites-server-0-1", "--tail=-1", "--ignore-errors")
        recipes.wait_phase("federated-sites", "Running", TIMEOUT_SECONDS)
        recipes.until(
            lambda: len(losses(log())) >= 2 or recipes.phase("federated-sites") == "Failed", TIMEOUT_SECONDS, "a round"
        )
        assert recipes.phase("federated-sites") == "Running", log()[-4000:]
        nodes = clients_by_node(recipes)
        assert sorted(nodes) == sorted(sites)
        recipes.delete_pod(nodes[sites[0]])
        recipes.until(
            lambda: clients_by_node(recipes).keys() == set(sites) and nodes != clients_by_node(recipes),
            TIMEOUT_SECONDS,
            "the client to be back at its data",
        )
        recipes.until(lambda: "completionTime" in recipes.status("federated-sites"), TIMEOUT_SECONDS, "the job to end")
        assert recipes.phase("federated-sites") == "Complete", log()[-4000:]
        assert float(re.findall(POINTS, log())[-1]) > 85
    finally:
        recipes.run("label", "node", *sites, "example.com/site-")
        recipes.run("delete", "tj,daemonset", "federated-sites", "federated-sites-data", "--ignore-not-found")
    shutil.rmtree("/var/lib/trainyard-digits/sites")


def clients_by_node(kube: Kube) -> dict[str, str]:
    """Return the pods of the clients that are there for good, by their nodes."""
    return {
        pod["spec"]["nodeName"]: pod["metadata"]["name"]
        for pod in kube.find_all("pods", "trainyard.dev/job-name=federated-sites,trainyard.dev/role=worker")
        if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]
    }


def inject(kube: Kube, recipe: Recipe) -> None:
    """Inject the fault."""
    pod = f"{recipe.name}-worker-1-1"
    if recipe.fault in {Fault.DELETE, Fault.DELETE_HEAD}:
        victim = recipe.victim if recipe.fault is Fault.DELETE else recipe.reporter
        kube.delete_pod(f"{recipe.name}-{victim}-1")
        return
    if recipe.fault is Fault.SUSPEND:
        suspend(kube, recipe.name)
        return
    words = main_container(manifest(recipe))["command"]
    own = next((Path(word).name for word in words if word.endswith(".py")), "")
    program = {Fault.KILL_RAY: "raylet", Fault.KILL_CLIENT: "flower-supernode"}.get(recipe.fault or Fault.KILL, own)
    kube.run("exec", pod, "--", *kill(re.escape(program)))
    workers = partial(role, kube, recipe.name, "worker")
    if recipe.fault is Fault.KILL_CLIENT:
        kube.until(lambda: workers()["restarts"] == 1, 60, "the container of the client to be restarted")
        kube.until(lambda: workers()["readyReplicas"] == 2, 60, "both clients to run")
        assert (kube.phase(recipe.name), kube.status(recipe.name)["attempt"]) == ("Running", 1)
    if recipe.fault is Fault.ALONE:
        kube.until(lambda: workers()["restarts"] == 1, 60, "the container to be restarted")
        kube.until(lambda: workers()["readyReplicas"] == 2, 60, "both workers to run")
        kube.delete_pod(pod)
        kube.until(lambda: kube.find("pod", f"{pod}-r1"), 60, "another pod of the worker")
        kube.until(lambda: workers()["readyReplicas"] == 2, 60, "both workers to run again")
        assert (kube.phase(recipe.name), kube.status(recipe.name)["attempt"]) == ("Running", 1)


def suspend(kube: Kube, name: str) -> None:
    """Suspend a job, and resume it once it has no pods."""
    kube.run("patch", "tj", name, "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":true}}}')
    kube.until(lambda: not kube.pods(name), 120, "the pods to be gone")
    kube.run("patch", "tj", name, "--type=merge", "-p", '{"spec":{"lifecycle":{"suspend":false}}}')


def role(kube: Kube, job: str, name: str) -> Json:
    """Return what the status says of the members of a role."""
    return next(each for each in kube.status(job)["roles"] if each["name"] == name)
