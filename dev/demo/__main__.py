"""`python -m dev.demo`: see the README."""

import sys
import time

from dev.demo import install, monitoring, run, target
from dev.demo.commands import Cluster, DemoError, say

CLOSING = """
The cluster stays up. To inspect the job, run from this folder:
  export KUBECONFIG={kubeconfig}
  export PATH={programs}:$PATH
  kubectl describe tj digits
  kubectl events --for tj/digits
  kubectl logs -l trainyard.dev/job-name=digits --prefix --tail=-1
  kubectl explain tj.spec.lifecycle
To run another job: kubectl apply -f examples/hello/job.yaml
To train again: kubectl delete tj digits && kubectl apply -k {job}
To power off a node: .venv/bin/python -m dev.localcluster node stop 2 (power on: node start 2)
To delete the cluster: make cluster-down
"""


def main() -> int:
    """Run the demo and return the exit code."""
    started = time.monotonic()
    try:
        monitored = monitoring.requested()
        cluster = target.choose()
        install.install(cluster)
        if monitored:
            monitoring.start(cluster)
        run.train(cluster)
        run.epilogue(cluster)
        if monitored:
            monitoring.closing()
    except DemoError as error:
        say(f"the demo failed: {error}")
        return 1
    say(f"done in {time.monotonic() - started:.0f} s")
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
