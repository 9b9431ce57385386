"""A training whose ranks record the samples and the loss of each step."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.kube import Json, job, main_container

PROGRAM = Path(__file__).with_name("elastic_program.py")
STEPS, SAMPLES, BATCH = 450, 360, 24


@dataclass
class Step:
    """The records of all ranks about one step."""

    attempts: set[int] = field(default_factory=set)
    samples: list[int] = field(default_factory=list)
    loss: float = 0.0


def training(name: str, folder: Path, pause: float) -> Json:
    """Return a job of four workers with one process each, and a host folder for checkpoints and records."""
    own = folder / name
    own.mkdir()
    own.chmod(0o777)
    elastic = {"maxReplicas": 6, "growAfterSeconds": 5}
    manifest = job(name, replicas=4, framework="torch", processesPerReplica=1, elastic=elastic)
    pod, main = manifest["spec"]["template"]["spec"], main_container(manifest)
    pod["terminationGracePeriodSeconds"] = 30
    pod["volumes"] = [
        {"name": "program", "configMap": {"name": "elastic"}},
        {"name": "folder", "hostPath": {"path": str(own)}},
    ]
    main["command"] = ["python3", "/app/elastic_program.py", "/folder", *map(str, (pause, STEPS, SAMPLES, BATCH))]
    main["volumeMounts"] = [{"name": "program", "mountPath": "/app"}, {"name": "folder", "mountPath": "/folder"}]
    return manifest


def steps(folder: Path) -> dict[int, Step]:
    found: dict[int, Step] = defaultdict(Step)
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            record = json.loads(line)
            step = found[record["step"]]
            step.attempts.add(int(path.stem.partition("-")[0]))
            step.samples += record["samples"]
            step.loss += record["loss"] / BATCH
    return dict(sorted(found.items()))
