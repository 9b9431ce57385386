"""Every recipe runs as its TrainingJob of `examples/recipes`, and learns; after a fault it resumes from its checkpoint.

`make test` runs the sample, `make test-long` all of them; `RECIPES='stages*' make cluster-test` (or another pattern) those of that name.
"""

import fnmatch
import os
import re
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
import yaml

from dev.demo.run import KILL
from tests.cluster.kube import Json, Kube, main_container, train_on_cpus
from tests.cluster.recipe_jobs import FOLDER, load

SAMPLE = ("images", "characters-tensor", "xgboost", "mpi")
TIMEOUT_SECONDS = 420


class Fault(Enum):
    """The fault of worker 1, once three losses are in the log."""

    KILL = "kill -9 of its process"
    DELETE = "its pod is deleted"
    KILL_RAY = "kill -9 of Ray's process there"
    DELETE_HEAD = "the pod of the head is deleted"
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
    """The member whose log tells how well it learns."""

    def log(self, attempt: int = 1) -> tuple[str, ...]:
        """Return the command that prints the reporter's log."""
        return "logs", f"{self.name}-{self.reporter}-{attempt}", "--tail=-1"


PICTURES, POINTS, LOSS = r"([\d.]+)% of pictures", r"([\d.]+)% of points", r"loss (\d+\.\d+)"
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
    Recipe("mpi", POINTS, least=90, fault=Fault.KILL, more=("--steps", "400", "--pause", "0.05")),
    Recipe("ray", POINTS, least=90, fault=Fault.KILL_RAY, more=("--steps", "1000"), reporter="head-0"),
    Recipe("ray", POINTS, least=90, fault=Fault.DELETE, more=("--steps", "1000"), reporter="head-0"),
    Recipe("ray", POINTS, least=90, fault=Fault.DELETE_HEAD, more=("--steps", "1000"), reporter="head-0"),
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


def manifest(recipe: Recipe) -> Json:
    """Return the manifest of the folder, with more arguments, for CPUs."""
    job: Json = yaml.safe_load((FOLDER / f"{recipe.name}.yaml").read_text())
    if recipe.more:
        main_container(job)["args"] += recipe.more
    return train_on_cpus(job)


@pytest.mark.parametrize("recipe", chosen(), ids=lambda recipe: recipe.name)
def test_a_recipe_learns(recipes: Kube, recipe: Recipe) -> None:
    job = manifest(recipe)
    load(recipes.cluster, job)
    recipes.apply(job)
    if recipe.fault:
        recipes.wait_phase(recipe.name, "Running", TIMEOUT_SECONDS)
        losses = partial(re.findall, r"\bloss\W+\d")
        recipes.until(lambda: len(losses(recipes.run(*recipe.log()))) >= 3, TIMEOUT_SECONDS, "three losses")
        inject(recipes, recipe)
    recipes.until(lambda: "completionTime" in recipes.status(recipe.name), TIMEOUT_SECONDS, f"{recipe.name} to end")
    status = recipes.status(recipe.name)
    log = recipes.run(*recipe.log(attempt=2 if recipe.fault is Fault.DELETE_HEAD else 1))
    assert status["phase"] == "Complete", log[-4000:]
    assert recipe.least < float(re.findall(recipe.learnt, log)[-1]) < recipe.most, log[-4000:]
    restarts = (status["restarts"]["failures"], status["restarts"]["disruptions"])
    assert restarts == (
        recipe.fault is Fault.KILL,
        recipe.fault in {Fault.DELETE, Fault.ALONE, Fault.DELETE_HEAD},
    ), status
    steps = [int(step) for step in re.findall(r"resuming from step (\d+)", log)]
    assert len(steps) == (recipe.fault not in {None, Fault.ALONE})
    assert all(steps)
    recipes.run("delete", "tj", recipe.name)


def inject(kube: Kube, recipe: Recipe) -> None:
    """Inject the fault."""
    pod = f"{recipe.name}-worker-1-1"
    if recipe.fault in {Fault.DELETE, Fault.DELETE_HEAD}:
        kube.delete_pod(pod if recipe.fault is Fault.DELETE else f"{recipe.name}-head-0-1")
        return
    words = main_container(manifest(recipe))["command"]
    own = next((Path(word).name for word in words if word.endswith(".py")), "")
    program = "raylet" if recipe.fault is Fault.KILL_RAY else own
    kube.run("exec", pod, "--", "python3", "-c", KILL.replace("train.py", program))
    if recipe.fault is Fault.ALONE:
        workers = partial(role, kube, recipe.name, "worker")
        kube.until(lambda: workers()["restarts"] == 1, 60, "the container to be restarted")
        kube.until(lambda: workers()["readyReplicas"] == 2, 60, "both workers to run")
        kube.delete_pod(pod)
        kube.until(lambda: kube.find("pod", f"{pod}-r1"), 60, "another pod of the worker")
        kube.until(lambda: workers()["readyReplicas"] == 2, 60, "both workers to run again")
        assert (kube.phase(recipe.name), kube.status(recipe.name)["attempt"]) == ("Running", 1)


def role(kube: Kube, job: str, name: str) -> Json:
    """Return what the status says of the members of a role."""
    return next(each for each in kube.status(job)["roles"] if each["name"] == name)
