"""The recipes of `examples/recipes` in a cluster: a namespace with their programs and volume, and their images on all nodes."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from dev.demo.commands import Cluster, show
from dev.demo.target import ROOT, python
from dev.localcluster import images
from tests.cluster.kube import Json, Kube, main_container

FOLDER = ROOT / "examples/recipes"


@contextmanager
def namespace(cluster: Cluster) -> Iterator[Kube]:
    """Create a namespace with the recipes' programs and volume, as their README says; remove it at the end."""
    name = f"t-{secrets.token_hex(4)}"
    cluster.kube("create", "namespace", name)
    kube = Kube(cluster, name)
    # A killed run leaves its volume: no claim can bind to it.
    cluster.kube("delete", "pv", "recipes", "--ignore-not-found")
    kube.run("apply", "-k", str(FOLDER))
    kube.run("apply", "-f", str(FOLDER / "volume-local.yaml"))
    kube.run("wait", "--for=condition=Complete", "job/recipes-volume", "--timeout=120s")
    yield kube
    cluster.kube("delete", "namespace", name, "--timeout=120s")
    cluster.kube("delete", "pv", "recipes")
    (volume,) = [
        each for each in yaml.safe_load_all((FOLDER / "volume-local.yaml").read_text()) if "hostPath" in each["spec"]
    ]
    shutil.rmtree(Path(volume["spec"]["hostPath"]["path"]))


def load(cluster: Cluster, job: Json) -> None:
    """Load the image of a job into all nodes."""
    image = main_container(job)["image"]
    if image not in cluster.images.values():
        (name,) = [each.name for each in images.IMAGES.values() if each.reference == image]
        (archive,) = images.build(name)
        show([*python("dev.localcluster"), "load", str(archive)])
