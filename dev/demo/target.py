"""Choose the cluster of the demo: the one in KUBE_CONTEXT, else kind if Docker runs, else a local cluster."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dev.demo.commands import Cluster, DemoError, capture, say, show
from dev.localcluster import images, tools
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import from_environment

ROOT = Path(__file__).parents[2]
LOCAL_IMAGES = {"operator": "localhost/trainyard/operator:dev", "trainer": "localhost/trainyard/trainer:dev"}
KIND_NAME = "trainyard"
KIND_SHARED = "/var/lib/trainyard-digits"
"""Checkpoint folder that the kind nodes share, as the nodes of a real cluster share a volume."""


def choose(environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return a running cluster that has the images. Raises DemoError."""
    if context := environ.get("KUBE_CONTEXT"):
        return given(context, environ)
    if shutil.which("kind") and _docker_runs():
        return kind()
    return local()


def given(context: str, environ: Mapping[str, str]) -> Cluster:
    """Return the user's own cluster. Its nodes must be able to pull the images that the user names."""
    named = {name: environ.get(f"{name.upper()}_IMAGE", "") for name in LOCAL_IMAGES}
    if missing := [f"{name.upper()}_IMAGE" for name, image in named.items() if not image]:
        raise DemoError(
            f"KUBE_CONTEXT is set: set {' and '.join(missing)} too, to images that the nodes of {context} can pull, "
            "built from Dockerfile and trainer-image/Dockerfile"
        )
    say(f"using kubeconfig context {context}")
    return Cluster(_program("kubectl"), _program("helm"), context=context, images=named, job="examples/digits/base")


def kind() -> Cluster:
    """Return a kind cluster of one control plane and three workers; create it if it does not exist."""
    if KIND_NAME in capture(["kind", "get", "clusters"]).split():
        say("using the existing kind cluster")
    else:
        say("creating a kind cluster with 3 worker nodes (about 1 minute) …")
        capture(["kind", "create", "cluster", "--name", KIND_NAME, "--config", "-"], stdin=kind_nodes())
    for name, context in (("operator", ROOT), ("trainer", ROOT / "trainer-image")):
        say(f"building the {name} image with Docker …")
        show(["docker", "build", "--tag", LOCAL_IMAGES[name], str(context)])
    say("loading the images into the nodes …")
    show(["kind", "load", "docker-image", "--name", KIND_NAME, *LOCAL_IMAGES.values()])
    return Cluster(
        _program("kubectl"),
        _program("helm"),
        context=f"kind-{KIND_NAME}",
        images=LOCAL_IMAGES,
        job="examples/digits/overlays/kind",
    )


def local() -> Cluster:
    """Return a three-node cluster on this machine, of programs built from pinned Go modules."""
    try:
        programs = tools.ensure("kubectl", "helm")
        operator, _ = images.build("operator", "trainer")
    except LocalClusterError as error:
        raise DemoError(str(error)) from error
    show([*python("dev.localcluster"), "up", "--nodes", "3", "--gpus-per-node", "8"])
    return Cluster(
        programs["kubectl"],
        programs["helm"],
        from_environment().kubeconfig,
        images=LOCAL_IMAGES,
        revision=operator.stem,
    )


def python(module: str) -> list[str]:
    """Return the command line that runs a module of this project."""
    return [sys.executable, "-m", module]


def kind_nodes() -> str:
    """Return the configuration of the kind cluster as JSON."""
    mount = {"hostPath": f"{tempfile.gettempdir()}/trainyard-kind", "containerPath": KIND_SHARED}
    workers = [{"role": "worker", "extraMounts": [mount]} for _ in range(3)]
    nodes = [{"role": "control-plane"}, *workers]
    return json.dumps({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes})


def _docker_runs() -> bool:
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], check=False, capture_output=True).returncode == 0


def _program(name: str) -> Path:
    if found := shutil.which(name):
        return Path(found)

    return tools.ensure(name)[name]
