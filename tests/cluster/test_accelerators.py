"""Accelerators of several vendors, as their device plugins offer them: what the operator counts, what a worker sees, and what is missing."""

from typing import Any

import pytest

from tests.cluster.devices import served
from tests.cluster.elastic_group import LONG
from tests.cluster.kube import Json, Kube, job, main_container

pytestmark = LONG
ENVIRONMENT = "env | sort; exit 0"
CORES = "aws.amazon.com/neuroncore"


def requesting(resource: str, count: int, *, env: list[Json] | None = None, **fields: Any) -> Json:
    """Return a job whose workers request devices, and print their environment."""
    manifest = job(script=ENVIRONMENT, **fields)
    main = main_container(manifest)
    main["resources"]["limits"] = {resource: str(count)}
    main["env"] = env or []
    return manifest


def environment(kube: Kube, pod: str) -> dict[str, str]:
    lines = kube.run("logs", pod, "-c", "main").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize(
    ("resource", "variable"),
    [("amd.com/gpu", "HIP_VISIBLE_DEVICES"), ("habana.ai/gaudi", "HABANA_VISIBLE_MODULES")],
)
def test_each_device_has_a_process(kube: Kube, resource: str, variable: str) -> None:
    own = [{"name": variable, "value": "0"}]
    with served(kube, resource, 2):
        kube.apply(requesting(resource, 2, replicas=1, framework="torch", env=own))
        kube.wait_phase("job", "Complete")
    found = environment(kube, "job-worker-0-1")
    expected = {
        "PET_NPROC_PER_NODE": "2",
        "TRAINYARD_PROCESSES_PER_REPLICA": "2",
        "TRAINYARD_ACCELERATORS_PER_REPLICA": "2",
        variable: "0",
    }
    assert found.items() >= expected.items()
    assert len(found["FAKE_VISIBLE_DEVICES"].split(",")) == 2, "the device plugin gave two"
    notes = [each["message"] for each in kube.find_all("events") if each["reason"] == "UserEnvironmentPreserved"]
    assert any(f"{variable}=0, so that 2 ranks of a worker see 1 of its devices" in note for note in notes), notes


def test_tpu_host_has_one_process_and_its_slice(kube: Kube) -> None:
    with served(kube, "google.com/tpu", 8):
        kube.apply(requesting("google.com/tpu", 4, replicas=2, framework="jax"))
        kube.wait_phase("job", "Complete")
    expected = {
        "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        # What a program must see at least: chips may be one device.
        "TRAINYARD_ACCELERATORS_PER_REPLICA": "1",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "job-worker-0.job,job-worker-1.job",
    }
    found = environment(kube, "job-worker-1-1")
    assert found.items() >= expected.items()
    assert len(found["FAKE_VISIBLE_DEVICES"].split(",")) == 4


def test_job_waits_for_devices_that_no_node_has(kube: Kube) -> None:
    kube.apply(requesting(CORES, 2, replicas=1, framework="torch"))
    kube.until(lambda: kube.condition("job", "Running").get("reason") == "Unschedulable", 30, "the reason")
    assert f"Insufficient {CORES}" in kube.condition("job", "Running")["message"]
    assert kube.status("job")["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}
    with served(kube, CORES, 2):
        kube.wait_phase("job", "Complete", 120)
    assert environment(kube, "job-worker-0-1")["PET_NPROC_PER_NODE"] == "2"


def test_unknown_devices_are_reported(kube: Kube) -> None:
    resource = "example.com/brain"
    with served(kube, resource, 2):
        kube.apply(requesting(resource, 2, replicas=1, framework="torch"))
        kube.wait_phase("job", "Complete")
    assert environment(kube, "job-worker-0-1")["TRAINYARD_PROCESSES_PER_REPLICA"] == "1"
    uncertain = kube.condition("job", "AcceleratorsUncertain")
    assert uncertain["status"] == "True"
    assert f"how many accelerators {resource} means" in uncertain["message"]
    assert "Set processesPerReplica" in uncertain["message"]
    assert "AcceleratorsUnknown" in kube.run("get", "events")
