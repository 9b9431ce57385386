"""Groups that a HorizontalPodAutoscaler resizes: by CPU from metrics-server, and by a metric of the training."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.demo.commands import show
from dev.demo.target import python
from tests.cluster.elastic_group import LONG, PATIENT, counts, trains
from tests.cluster.kube import Json, Kube, job, main_container

DOCS = Path(__file__).parents[2] / "docs" / "elasticity.md"
AT_ONCE = {"scaleUp": {"stabilizationWindowSeconds": 0}, "scaleDown": {"stabilizationWindowSeconds": 0}}
BEGIN = """
import os, time
import torch, torch.distributed as dist
from trainyard_agent import progress
dist.init_process_group("gloo")
size = dist.get_world_size()
print(f"attempt {os.environ['TRAINYARD_ATTEMPT']} at port {os.environ['MASTER_PORT']} as one of {size}", flush=True)
"""
# A worker alone is busy all the time, three have hardly anything to do.
BUSY_ALONE = f"""{BEGIN}
for step in range(100_000):
    end = time.monotonic() + 0.5
    while size < 3 and time.monotonic() < end: pass
    time.sleep(0.5 if size > 1 else 0.1)
    dist.all_reduce(torch.ones(1))
    progress(step)
"""
# A stream of a hundred samples a second, of which each rank gets its share.
STREAM = f"""{BEGIN}
from trainyard_torch.monitoring.monitor import Monitor
with Monitor() as monitor:
    for step in range(100_000):
        time.sleep(0.2)
        dist.all_reduce(torch.ones(1))
        monitor.step(step, samples=max(1, round(20 / size)))
"""

pytestmark = LONG


@pytest.fixture(autouse=True)
def monitoring(cluster: object) -> None:
    """Start metrics-server, Prometheus and its adapter."""
    show([*python("dev.localcluster"), "monitoring"])


def documented() -> tuple[Json, Json]:
    """Return the CPU autoscaler of the docs, and the metric of the other one."""
    section = DOCS.read_text().partition("## By an autoscaler")[2].partition("\n## ")[0]
    first, second = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    return yaml.safe_load(first), yaml.safe_load(second)


def autoscaler(**spec: Any) -> Json:
    made, _ = documented()
    made["metadata"]["name"] = "job"
    made["spec"] |= {"scaleTargetRef": {**made["spec"]["scaleTargetRef"], "name": "job"}, "behavior": AT_ONCE, **spec}
    return made


def training(script: str) -> Json:
    manifest = job(framework="torch", replicas=1, elastic={**PATIENT, "minReplicas": 1, "maxReplicas": 4})
    main = main_container(manifest)
    main["command"] = ["python3", "-c", script]
    main["resources"]["requests"]["cpu"] = "200m"
    main["env"] = [{"name": "TRAINYARD_METRICS_PORT", "value": "9400"}]
    main["ports"] = [{"name": "metrics", "containerPort": 9400}]
    return manifest


def test_cpu_autoscaler_grows_and_shrinks_the_group(kube: Kube) -> None:
    kube.apply(training(BUSY_ALONE))
    first = trains(kube, 1)
    kube.apply(autoscaler(minReplicas=1, maxReplicas=3))
    grown = trains(kube, 3, after=first["attempt"], seconds=240)
    shrunk = trains(kube, 1, after=grown["attempt"], seconds=240)
    kube.run("delete", "hpa", "job")
    failures, disruptions, resizes = counts(shrunk)
    assert (failures, disruptions) == (0, 0)
    assert resizes >= 2
    assert "SuccessfulRescale" in kube.run("get", "events")


def test_training_metric_autoscaler_finds_the_right_size(kube: Kube) -> None:
    """A hundred samples a second, 25 for each worker."""
    kube.apply(training(STREAM))
    trains(kube, 1)
    _, metric = documented()
    kube.apply(autoscaler(metrics=metric["metrics"]))
    status = trains(kube, 4, seconds=240)
    assert counts(status)[:2] == (0, 0)
    attempt = status["attempt"]
    seen = kube.get("hpa", "job")["status"]
    assert seen["desiredReplicas"] == 4
    assert kube.status("job")["attempt"] == attempt, "and stays at it"
