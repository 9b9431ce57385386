"""Every panel of every dashboard has data of a real Prometheus while a job trains and faults happen."""

from dev.codegen.dashboards.__main__ import BOARDS
from dev.codegen.dashboards.prometheus import Asked
from dev.demo.commands import show
from dev.demo.target import python
from dev.localcluster.addresses import PROMETHEUS_URL
from tests.cluster.failing_training import fail
from tests.cluster.kube import Json, Kube, job, main_container, train_on_cpus

TRAIN = """
import os, pathlib, time
import torch, torch.distributed as dist
from trainyard_torch import start
from trainyard_torch.monitoring.monitor import Monitor

fault = pathlib.Path("/tmp/fault")
with start(), Monitor(total_steps=100_000, peak_flops=1e12) as monitor:
    monitor.set_flops(1e9)
    weight = torch.zeros(4, requires_grad=True)
    for step in range(1, 100_000):
        with monitor.phase("data"):
            time.sleep(0.02)
        with monitor.phase("forward"):
            time.sleep(0.02 + 0.01 * dist.get_rank())
            loss = ((weight - 1) ** 2).sum()
        with monitor.phase("backward"):
            loss.backward()
        with monitor.phase("communication"):
            dist.all_reduce(weight.grad)
        with monitor.phase("optimizer"), torch.no_grad():
            weight -= 0.001 * weight.grad
        norm = weight.grad.norm()
        weight.grad = None
        monitor.step(step, samples=8, tokens=4096, loss=loss.detach(), grad_norm=norm)
        if step % 50 == 0:
            with monitor.phase("checkpoint"):
                time.sleep(0.1)
            monitor.record_checkpoint(step, 0.1)
        if fault.exists():
            fault.unlink()
            raise RuntimeError("boom")
"""


def training(name: str) -> Json:
    manifest = job(name, framework="torch", replicas=3)
    main = main_container(manifest)
    main["command"] = ["python3", "-c", TRAIN]
    main["env"] = [{"name": "TRAINYARD_METRICS_PORT", "value": "9400"}]
    main["ports"] = [{"name": "metrics", "containerPort": 9400}]
    main["resources"]["limits"] = {"nvidia.com/gpu": 1}
    return train_on_cpus(manifest)


def steps(kube: Kube, attempt: int) -> None:
    def reported() -> bool:
        return bool(kube.status("job").get("goodput", {}).get("attempt") == attempt)

    kube.until(reported, 180, f"steps of attempt {attempt}")


def test_no_panel_is_empty(kube: Kube) -> None:
    show([*python("dev.localcluster"), "monitoring", "--only", "prometheus"])
    kube.apply(training("job"), job("short", script="sleep 5"))
    steps(kube, 1)
    fail(kube, "job-worker-1-1")
    steps(kube, 2)
    kube.delete_pod("job-worker-2-1")
    steps(kube, 3)
    kube.wait_phase("short", "Complete")
    asked = Asked(PROMETHEUS_URL, {"namespace": kube.namespace, "name": "job"})
    wanted = [(board, panel) for board in BOARDS for panel in board.panels if not panel.needs]

    def empty() -> list[str]:
        return [
            f"{board.title}: {panel.title}: {query.legend}: {asked.put(query.expr)}"
            for board, panel in wanted
            for query in panel.queries
            if not asked.series(panel, query) and not query.rare
        ]

    try:
        kube.until(lambda: not empty(), 90, "all panels to have something to show")
    finally:
        print("\n".join(["panels without anything:", *empty()]))  # noqa: T201 - pytest shows it below a failed test
    gpu = [(panel, query) for board in BOARDS for panel in board.panels if panel.needs for query in panel.queries]
    assert gpu
    assert all(asked.series(panel, query) == [] for panel, query in gpu), "understood, and nothing without GPUs"
    marks = [asked.put(mark.query) for board in BOARDS for mark in board.marks]
    for mark in marks:
        assert asked.found(mark), mark
