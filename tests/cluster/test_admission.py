"""Manifests that `kubectl apply` rejects, with an error that names the field and the fix."""

from collections.abc import Callable

import pytest
import yaml

from tests.cluster.kube import Json, Kube, job, main_container
from trainyard.api.constants import MAX_JOB_NAME


def spec(**fields: object) -> Callable[[Json], None]:
    return lambda manifest: manifest["spec"].update(fields)


def pod(**fields: object) -> Callable[[Json], None]:
    return lambda manifest: manifest["spec"]["template"]["spec"].update(fields)


def wanting(**resources: str) -> Json:
    return {"name": "main", "image": "x", "resources": {"requests": resources}}


def named(name: str) -> Callable[[Json], None]:
    return lambda manifest: manifest["metadata"].update(name=name)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (spec(replicas=0), ["spec.replicas", "greater than or equal to 1"]),
        (spec(replicas=-1), ["spec.replicas", "greater than or equal to 1"]),
        (spec(replicas=10_001), ["spec.replicas", "less than or equal to 10000"]),
        (pod(containers=[]), ["spec.template.spec.containers", "at least 1 items"]),
        (named("a" * (MAX_JOB_NAME + 1)), ["metadata.name", f"longer than {MAX_JOB_NAME}", "shorter"]),
        (named("1-job"), ["metadata.name", "start with a letter"]),
        (named("my.job"), ["metadata.name", "a-z, 0-9 and -"]),
        (spec(framwork="torch"), ['unknown field "spec.framwork"']),
        (spec(lifecycle={"suspnd": True}), ['unknown field "spec.lifecycle.suspnd"']),
        (spec(framework="pytorch"), ["spec.framework", '"torch", "deepspeed", "megatron"', '"none"']),
        (spec(lifecycle={"cleanPods": "Some"}), ["spec.lifecycle.cleanPods", '"Running", "All", "None"']),
        (spec(processesPerReplica="many"), ["spec.processesPerReplica", "number from 1 to 1024, or auto"]),
        (spec(processesPerReplica=0), ["spec.processesPerReplica", "number from 1 to 1024, or auto"]),
        (spec(parallelism={"tensor": 0}), ["spec.parallelism.tensor", "greater than or equal to 1"]),
        (spec(parallelism={"pipeline": 1025}), ["spec.parallelism.pipeline", "less than or equal to 1024"]),
        (spec(parallelism={"data": 2}), ['unknown field "spec.parallelism.data"']),
        (
            spec(replicas=3, processesPerReplica=2, parallelism={"tensor": 2, "pipeline": 2}),
            ["spec.parallelism", "replicas x processesPerReplica", "must be a multiple of", "change one of"],
        ),
        (spec(recovery={"maxRestarts": -1}), ["spec.recovery.maxRestarts"]),
        (spec(recovery={"agent": "always"}), ["spec.recovery.agent", "auto", "none"]),
        (
            spec(framework="lightgbm", recovery={"agent": "none"}),
            ["spec.recovery.agent", "need the agent", "leave recovery.agent out"],
        ),
        (
            spec(framework="horovod", recovery={"agent": "none"}),
            ["spec.recovery.agent", "need the agent", "leave recovery.agent out"],
        ),
        (
            spec(framework="mpi", recovery={"agent": "none"}),
            ["spec.recovery.agent", "need the agent", "leave recovery.agent out"],
        ),
        (
            spec(recovery={"windowSeconds": 3600, "maxRestarts": 5000}),
            ["spec.recovery.maxRestarts", "greater than 1000"],
        ),
        (spec(recovery={"rules": [{"action": "Fail"}]}), ["spec.recovery.rules[0]", "must say when it applies"]),
        (
            spec(recovery={"rules": [{"action": "Explode", "exitCodes": [1]}]}),
            ["rules[0].action", '"RestartElsewhere", "Fail"'],
        ),
        (
            spec(recovery={"avoidNodes": False, "rules": [{"action": "RestartElsewhere", "exitCodes": [1]}]}),
            ["spec.recovery.avoidNodes", "must not be false where a rule says RestartElsewhere"],
        ),
        (spec(recovery={"rules": [{"action": "Fail", "exitCodes": [0]}]}), ["spec.recovery.rules[0].exitCodes[0]"]),
        (spec(lifecycle={"activeDeadlineSeconds": 0}), ["spec.lifecycle.activeDeadlineSeconds"]),
        (spec(lifecycle={"ttlSecondsAfterFinished": -1}), ["spec.lifecycle.ttlSecondsAfterFinished"]),
        (spec(managedBy="me"), ["spec.managedBy"]),
        (pod(restartPolicy="OnFailure"), ["restartPolicy", "must be Never or left out"]),
        (pod(hostname="me"), ["hostname and subdomain must be left out"]),
        (pod(activeDeadlineSeconds=5), ["activeDeadlineSeconds", "spec.lifecycle.activeDeadlineSeconds"]),
        (pod(containers=[{"name": "main"}]), ["spec.template.spec.containers[0].image", "Required"]),
        (pod(containers=[{"name": "No Name", "image": "x"}]), ["spec.template.spec.containers[0].name"]),
        (pod(containers=[wanting(memory="64MB")]), ["containers[0].resources.requests.memory", "KMGTPE"]),
        (pod(containers="none"), ["spec.template.spec.containers", "array"]),
    ],
)
def test_refused(kube: Kube, change: Callable[[Json], None], messages: list[str]) -> None:
    manifest = job()
    change(manifest)
    rejection = kube.refused("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    for words in messages:
        assert words in rejection


def test_the_longest_name_works(kube: Kube) -> None:
    name = "a" * MAX_JOB_NAME
    kube.apply(job(name, script="exit 0"))
    kube.wait_phase(name, "Complete")


@pytest.mark.parametrize(
    ("patch", "messages"),
    [
        ('{"spec":{"framework":"torch"}}', "framework cannot be changed"),
        ('{"spec":{"managedBy":"example.com/x"}}', "managedBy cannot be changed"),
        ('{"spec":{"processesPerReplica":2}}', "processesPerReplica can be changed only while the job is suspended"),
        ('{"spec":{"parallelism":{"tensor":2}}}', "parallelism can be changed only while the job is suspended"),
        ('{"spec":{"recovery":{"agent":"none"}}}', "recovery.agent can be changed only while the job is suspended"),
        ('{"spec":{"template":{"spec":{"priority":1}}}}', "template can be changed only while the job is suspended"),
    ],
)
def test_running_job_rejects_changes_to_its_template(kube: Kube, patch: str, messages: str) -> None:
    kube.apply(job())
    kube.wait_phase("job", "Running")
    assert messages in kube.refused("patch", "tj", "job", "--type=merge", "-p", patch)


def test_a_suspended_job_may_get_another_template(kube: Kube) -> None:
    manifest = job(lifecycle={"suspend": True})
    kube.apply(manifest)
    kube.wait_phase("job", "Suspended")
    main_container(manifest)["command"] = ["sh", "-c", "exit 0"]
    kube.apply(manifest)
    manifest["spec"]["lifecycle"]["suspend"] = False
    kube.apply(manifest)
    kube.wait_phase("job", "Complete")


def test_parallelism_goes_with_the_number_of_ranks(kube: Kube) -> None:
    kube.apply(job(replicas=4, processesPerReplica=1, parallelism={"tensor": 2}, lifecycle={"suspend": True}))
    assert kube.get("tj", "job")["spec"]["parallelism"] == {"tensor": 2, "pipeline": 1, "context": 1}
    assert "must be a multiple of" in kube.refused("scale", "tj", "job", "--replicas=5")
    kube.run("scale", "tj", "job", "--replicas=6")
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"parallelism":{"pipeline":3}}}')
    assert "must be a multiple of" in kube.refused("scale", "tj", "job", "--replicas=4")
    # Of how many processes `auto` stands for, the API server knows nothing.
    kube.run("patch", "tj", "job", "--type=merge", "-p", '{"spec":{"processesPerReplica":"auto","replicas":4}}')


def test_defaults_and_documentation_come_from_the_server(kube: Kube) -> None:
    bare = job()
    bare["spec"] = {"template": bare["spec"]["template"], "managedBy": "example.com/nobody"}
    kube.apply(bare)
    stored = kube.get("tj", "job")["spec"]
    assert (stored["framework"], stored["replicas"], stored["processesPerReplica"]) == ("torch", 1, "auto")
    limits = {"maxRestarts": 10, "noProgressLimit": 3, "forceDeleteAfterSeconds": 300}
    means = {
        "agent": "auto",
        "hiddenFailures": "Warn",
        "minRestartScope": "Process",
        "warmStart": True,
        "avoidNodes": True,
    }
    assert stored["recovery"] == {**limits, **means}
    assert stored["lifecycle"] == {"suspend": False, "cleanPods": "Running"}
    assert "How many failures may restart the job" in kube.run("explain", "tj.spec.recovery.maxRestarts")
