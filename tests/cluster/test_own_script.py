"""The commands of docs/own-script.md, in their order, on the cluster."""

import re
import shlex

import yaml

from dev.demo.target import ROOT
from tests.cluster.kube import Kube, main_container

PAGE = (ROOT / "docs/own-script.md").read_text()


def commands() -> list[str]:
    """Return the page's commands, one a line."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def run(kube: Kube, line: str) -> str:
    """Run one line; each of its commands is a kubectl, of which the next one reads the output."""
    output: str | None = None
    for command in line.split(" | "):
        program, *words = shlex.split(command)
        assert program == "kubectl"
        output = kube.run(*words, stdin=output)
    return output or ""


def test_the_page_runs_as_written(kube: Kube) -> None:
    lines = commands()
    wait = next(line for line in lines if " wait " in line)
    before, logs = lines[: lines.index(wait)], next(line for line in lines if " logs " in line)
    for line in (each for each in before if each != logs):
        run(kube, line)
    kube.until(lambda: kube.status("own-script").get("progress", {}).get("step"), 120, "the first step")
    run(kube, wait)
    printed = run(kube, logs)
    assert "rank 0 step 200 loss" in printed
    assert "rank 1 step 200 loss" in printed
    row = run(kube, "kubectl get tj own-script")
    assert re.search(r"own-script +Complete +2/2 +1 +0 +200 +100 +WorkersSucceeded", row), row


def test_later_job_continues_on_the_volume(kube: Kube) -> None:
    claim, job = yaml.safe_load_all((ROOT / "examples/own-script/job.yaml").read_text())
    run(kube, commands()[0])
    for steps, found in (("50", "rank 0 step 50"), ("100", "rank 0 continues with step 51")):
        main_container(job)["env"].append({"name": "STEPS", "value": steps})
        kube.apply(claim, job)
        kube.wait_phase("own-script", "Complete", 180)
        assert found in run(kube, "kubectl logs -l trainyard.dev/job-name=own-script --prefix --tail=-1")
        kube.run("delete", "tj", "own-script", "--wait=true")
        main_container(job)["env"].pop()
    volume = kube.get("pvc", "own-script")["spec"]["volumeName"]
    kube.run("delete", "pvc", "own-script")
    kube.until(lambda: kube.find("pv", volume) is None, 60, "the volume to be deleted with its claim")
