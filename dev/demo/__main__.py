"""`python -m dev.demo`: see the README."""

import sys
import time

from dev.demo import install, monitoring, run, target
from dev.demo.commands import Cluster, DemoError, say

CLOSING = """
The cluster stays up. To look around, from this folder:
  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH
  kubectl describe tj digits
  kubectl events --for tj/digits
  kubectl logs digits-worker-0-1
  kubectl explain tj.spec.lifecycle
To run another job: kubectl apply -f examples/hello/job.yaml
To train once more: kubectl delete tj digits && kubectl apply -k {job}
To cut the power of a node: .venv/bin/python -m dev.localcluster node stop 2     (and: node start 2)
To take it all down: make cluster-down
"""


def main() -> int:
    """Run the demo. Returns the exit code."""
    began = time.monotonic()
    try:
        watched = monitoring.wished()
        cluster = target.choose()
        install.install(cluster)
        if watched:
            monitoring.start(cluster)
        run.train(cluster)
        run.epilogue(cluster)
        if watched:
            monitoring.closing()
    except DemoError as error:
        say(f"the demo failed: {error}")
        return 1
    say(f"done in {time.monotonic() - began:.0f} s")
    _closing(cluster)
    return 0


def _closing(cluster: Cluster) -> None:
    if cluster.kubeconfig:
        text = CLOSING.format(
            kubeconfig=cluster.kubeconfig,
            programs=f"{cluster.kubectl.parent}:{cluster.helm.parent}",
            job=cluster.job,
        )
        sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
