"""The pod of a worker with each known network profile: golden files, and what an API server is asked to take.

`python -m tests.support.network_pods` writes the golden files. Read the diff: each value needs a source.
"""

from pathlib import Path
from typing import Any

import yaml

from tests.support.jobs import job
from tests.support.worker_pods import container
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import NamedProfile, NetworkProfile, with_own

Json = dict[str, Any]
GOLDEN = Path(__file__).parents[1] / "golden/networks"
DAEMONS = {"gpudirect-tcpx": "tcpx-daemon", "gpudirect-tcpxo": "tcpxo-daemon"}
"""The sidecars whose image the platform team sets."""
WITH_IMAGES = with_own(
    KNOWN_NETWORKS,
    {
        name: NetworkProfile.model_validate({"sidecars": [{"name": each, "image": f"example.com/{each}:1"}]})
        for name, each in DAEMONS.items()
    },
)
"""All known profiles, complete."""
GPUS: Json = {"limits": {"nvidia.com/gpu": 8, "memory": "512Gi"}, "requests": {"cpu": "64"}}


def network_pod(network: NamedProfile | None, main: Json | None = None, index: int = 1, **pod: Any) -> Json:
    """Return the pod of worker 1 of two that use eight GPUs each."""
    containers = [main or container(command=["python", "train.py"], resources=GPUS)]
    made = job(2, framework="none", template={"spec": {"containers": containers, **pod}}).job
    return worker_pod(Worker(made, index, 1, 2), network=network)


def set_by(network: NamedProfile) -> Json:
    """Return what of the pod differs from the same pod without a network: annotations, and fields of the spec."""
    plain, made = network_pod(None), network_pod(network)
    main, before = made["spec"]["containers"][0], plain["spec"]["containers"][0]
    own = {variable["name"]: variable for variable in before["env"]}
    return {
        "annotations": _new(made["metadata"]["annotations"], plain["metadata"]["annotations"]),
        "main": {
            **_new(main, before),
            "env": {v["name"]: v["value"] for v in main["env"] if own.get(v["name"]) != v},
        },
        "spec": _new(made["spec"], {**plain["spec"], "containers": made["spec"]["containers"]}),
    }


def _new(fields: Json, before: Json) -> Json:
    return {name: value for name, value in fields.items() if before.get(name) != value}


if __name__ == "__main__":
    for made in WITH_IMAGES.values():
        (GOLDEN / f"{made.name}.yaml").write_text(yaml.safe_dump(set_by(made), sort_keys=False, width=110))
