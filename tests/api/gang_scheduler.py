"""Real gang schedulers beside the API server of these tests: kube-scheduler with its gates, Volcano, and that of scheduler-plugins."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.localcluster import tools
from tests.api.plane import Plane
from tests.support.control_plane import ADMIN, free_port, start_mortal

if TYPE_CHECKING:
    import subprocess

Json = dict[str, Any]
GATES = {"feature-gates": "GenericWorkload=true", "runtime-config": "scheduling.k8s.io/v1alpha2=true"}
PATHS = {
    "native": "scheduling.k8s.io/v1alpha2",
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
GANGS = {"gangs": {"schedulers": [*PATHS]}}
CPU = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": {"requests": {"cpu": "1"}}}]}}
ALL = ",".join(PATHS)
COSCHEDULING = {
    "schedulerName": "scheduler-plugins-scheduler",
    "plugins": {
        "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
        "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 3}}],
}
VOLCANO = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: nodeorder
"""


def command(scheduler: str, plane: Plane, folder: Path) -> list[str]:
    """Return the command of the scheduler by its name in `scheduling.gang`."""
    kubeconfig = plane.kubeconfig(ADMIN)
    if scheduler == "volcano":
        (folder / "volcano.conf").write_text(VOLCANO)
        return [
            str(tools.ensure("volcano-scheduler")["volcano-scheduler"]),
            f"--kubeconfig={kubeconfig}",
            f"--scheduler-conf={folder}/volcano.conf",
            f"--listen-address=127.0.0.1:{free_port()}",
            "--leader-elect=false",
            "--cache-dumper=false",
            "--schedule-period=500ms",
        ]
    configuration: Json = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "leaderElection": {"leaderElect": False},
    }
    if scheduler == "coscheduling":
        configuration["profiles"] = [COSCHEDULING]
    (folder / f"{scheduler}.yaml").write_text(json.dumps(configuration))
    program = "coscheduler" if scheduler == "coscheduling" else "kube-scheduler"
    gates = ["--feature-gates=GenericWorkload=true,GangScheduling=true"] if scheduler == "native" else []
    return [str(tools.ensure(program)[program]), f"--config={folder}/{scheduler}.yaml", "--secure-port=0", *gates]


@contextmanager
def scheduling(scheduler: str, plane: Plane, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the scheduler while inside."""
    words = command(scheduler, plane, folder)
    with (folder / f"{scheduler}.log").open("wb") as log:
        process = start_mortal(words, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)
