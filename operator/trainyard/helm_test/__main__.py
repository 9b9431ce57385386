"""`python -m trainyard.helm_test`: apply the job, wait for its end, say how it went, take it away. What `helm test` runs."""

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
from trainyard.helm_test import SIGN_OF_LIFE

Json = dict[str, Any]
PATIENCE_SECONDS = 300.0
ENDS = {"Complete": 0, "Failed": 1}
WORKER = ["/opt/trainyard/bin/python", "-m", "trainyard.helm_test.worker"]


def manifest(name: str, image: str, pull_policy: str, pull_secrets: list[str]) -> Json:
    """The job. It runs where pod security is restricted, too."""
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
    lifecycle = {"activeDeadlineSeconds": int(PATIENCE_SECONDS), "ttlSecondsAfterFinished": 600}
    spec = {"framework": "torch", "replicas": 2, "lifecycle": lifecycle, "template": {"spec": pod}}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}


def told(status: Mapping[str, Any]) -> str:
    """One line of where the job stands."""
    line = f"{status.get('phase', 'not seen by the operator yet')}, {status.get('ready', '0/2')} ready"
    if (step := status.get("progress", {}).get("step")) is not None:
        line += f", step {step}"
    return line


def why(status: Mapping[str, Any]) -> str:
    """What the status says of a job that did not get there: failure and conditions, a line each."""
    failure = status.get("lastFailure")
    lines = [f"lastFailure: {failure['reason']}: {failure.get('message', '')}"] if failure else []
    lines += [
        f"{c['type']}={c['status']} ({c['reason']}): {c.get('message', '')}" for c in status.get("conditions", [])
    ]
    return "\n".join(lines) or "it has no status: is the operator ready, and does it watch this namespace?"


def follow(read: Callable[[], Mapping[str, Any]], say: Callable[[str], object], pause: float = 1.0) -> int:
    """Until the job has ended. Returns the exit code."""
    end, before, status = time.monotonic() + PATIENCE_SECONDS + 30, "", dict[str, Any]()
    while time.monotonic() < end:
        status = dict(read())
        if (line := told(status)) != before:
            say(before := line)
        code = ENDS.get(status.get("phase", ""))
        if code is not None:
            say("the installation trains" if code == 0 else f"the job failed:\n{why(status)}")
            return code
        time.sleep(pause)
    say(f"the job has not ended in {PATIENCE_SECONDS + 30:.0f} s:\n{why(status)}")
    return 1


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Run the test. Returns the exit code."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    config.load_incluster_config()  # type: ignore[no-untyped-call]
    api, namespace, name = (
        client.CustomObjectsApi(),
        environ["HELM_TEST_NAMESPACE"],
        f"helm-test-{secrets.token_hex(3)}",
    )
    place = (GROUP, VERSION, namespace, PLURAL)
    secrets_named = [each for each in environ.get("HELM_TEST_PULL_SECRETS", "").split(",") if each]
    try:
        api.create_namespaced_custom_object(
            *place, manifest(name, environ["HELM_TEST_IMAGE"], environ["HELM_TEST_PULL_POLICY"], secrets_named)
        )
    except HTTPError as error:
        say(f"the API server cannot be reached: {error}")
        return 1
    except client.ApiException as error:
        say(f"the API server refuses TrainingJob {namespace}/{name}: {error.status} {error.reason}: {error.body}")
        return 1
    say(f"TrainingJob {namespace}/{name} is created")
    sign = Path(environ[SIGN_OF_LIFE])

    def read() -> Json:
        job: Any = api.get_namespaced_custom_object(*place, name)
        sign.touch()
        return dict(job.get("status", {}))

    try:
        return follow(read, say)
    except (client.ApiException, HTTPError) as error:
        say(f"the API server does not tell of TrainingJob {namespace}/{name} any more: {error}")
        return 1
    finally:
        # Whoever has deleted it already, or is not to be reached: it goes by itself ten minutes after its end.
        with suppress(client.ApiException, HTTPError):
            api.delete_namespaced_custom_object(*place, name, propagation_policy="Background")


if __name__ == "__main__":
    sys.exit(main())
