"""The README's first command on the shared cluster: it must show attempt 2, the resumed step and the accuracy."""

import re
import sys

from dev.demo.commands import Cluster, capture


def test_the_demo(cluster: Cluster) -> None:
    output = capture([sys.executable, "-m", "dev.demo"], environment=cluster.environment)
    print(output)  # noqa: T201 - pytest shows it below a failed test
    assert "killing the training process of worker 1" in output
    recovered = re.search(r"attempt 2 resumed from step (\d+) and finished with a test accuracy of (0\.\d+)", output)
    assert recovered
    assert int(recovered[1]) > 0
    assert float(recovered[2]) >= 0.95
    assert re.search(r"digits +Complete +3/3 +2 +1 ", output), "kubectl get tj"
    assert "WorkerFailed" in output
    assert 'trainyard_restarts_total{cause="failure"}' in output
