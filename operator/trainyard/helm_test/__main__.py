"""`python -m trainyard.helm_test`: create the job, wait until it finishes, report the result, delete it. Run by `helm test`."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from trainyard.api.constants import GROUP, KIND, PLURAL, VERSION
from trainyard.helm_test import HEARTBEAT_FILE_VARIABLE

Json = dict[str, Any]
JOB_TIMEOUT_SECONDS = 300.0
GRACE_SECONDS = 30.0
"""Time for the operator to enforce the deadline of the job."""
EXIT_CODES = {"Complete": 0, "Failed": 1}
WORKER = ["/opt/trainyard/bin/python", "-m", "trainyard.helm_test.worker"]


def manifest(name: str, image: str, pull_policy: str, pull_secrets: list[str]) -> Json:
    """Return the TrainingJob. It satisfies the restricted pod security standard."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": WORKER,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "imagePullSecrets": [{"name": each} for each in pull_secrets],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    lifecycle = {"activeDeadlineSeconds": int(JOB_TIMEOUT_SECONDS), "ttlSecondsAfterFinished": 600}
    spec = {"framework": "torch", "replicas": 2, "lifecycle": lifecycle, "template": {"spec": pod}}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}


def describe(status: Mapping[str, Any]) -> str:
    """Return one line with phase, ready workers and step."""
    line = f"{status.get('phase', 'Unknown (not reconciled yet)')}, {status.get('ready', '0/2')} ready"
    if (step := status.get("progress", {}).get("step")) is not None:
        line += f", step {step}"
    return line


def diagnosis(status: Mapping[str, Any]) -> str:
    """Return the last failure and the conditions of a job that did not complete, one per line."""
    failure = status.get("lastFailure")
    lines = [f"lastFailure: {failure['reason']}: {failure.get('message', '')}"] if failure else []
    lines += [
        f"{c['type']}={c['status']} ({c['reason']}): {c.get('message', '')}" for c in status.get("conditions", [])
    ]
    return "\n".join(lines) or "the job has no status: check that the operator is ready and watches this namespace"


def follow(read: Callable[[], Mapping[str, Any]], say: Callable[[str], object], pause: float = 1.0) -> int:
    """Print the progress of the job until it finishes, and return the exit code.

    Args:
        read: returns the status of the job.
        say: prints a line.
        pause: seconds between two reads.
    """
    timeout = JOB_TIMEOUT_SECONDS + GRACE_SECONDS
    deadline, previous, status = time.monotonic() + timeout, "", dict[str, Any]()
    while time.monotonic() < deadline:
        status = dict(read())
        if (line := describe(status)) != previous:
            say(previous := line)
        code = EXIT_CODES.get(status.get("phase", ""))
        if code is not None:
            say("the job completed: the installation works" if code == 0 else f"the job failed:\n{diagnosis(status)}")
            return code
        time.sleep(pause)
    say(f"the job did not finish within {timeout:.0f} s:\n{diagnosis(status)}")
    return 1


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the test and return the exit code."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    config.load_incluster_config()  # type: ignore[no-untyped-call]
    api, namespace, name = (
        client.CustomObjectsApi(),
        environ["HELM_TEST_NAMESPACE"],
        f"helm-test-{secrets.token_hex(3)}",
    )
    resource = (GROUP, VERSION, namespace, PLURAL)
    pull_secrets = [each for each in environ.get("HELM_TEST_PULL_SECRETS", "").split(",") if each]
    try:
        api.create_namespaced_custom_object(
            *resource, manifest(name, environ["HELM_TEST_IMAGE"], environ["HELM_TEST_PULL_POLICY"], pull_secrets)
        )
    except HTTPError as error:
        say(f"cannot connect to the API server: {error}")
        return 1
    except client.ApiException as error:
        say(f"the API server rejected TrainingJob {namespace}/{name}: {error.status} {error.reason}: {error.body}")
        return 1
    say(f"created TrainingJob {namespace}/{name}")
    heartbeat = Path(environ[HEARTBEAT_FILE_VARIABLE])

    def read() -> Json:
        job: Any = api.get_namespaced_custom_object(*resource, name)
        heartbeat.touch()
        return dict(job.get("status", {}))

    try:
        return follow(read, say)
    except (client.ApiException, HTTPError) as error:
        say(f"cannot read TrainingJob {namespace}/{name}: {error}")
        return 1
    finally:
        # A job that is already deleted, or cannot be deleted now, needs nothing: its TTL deletes it ten minutes after it finishes.
        with suppress(client.ApiException, HTTPError):
            api.delete_namespaced_custom_object(*resource, name, propagation_policy="Background")


if __name__ == "__main__":
    sys.exit(main())
