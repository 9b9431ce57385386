"""Roles on a real API server: what it refuses, with the roles that there are, and a group with parameter servers from start to end."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until

Json = dict[str, Any]
CHIEF, PS, EVALUATOR, HEAD = {"name": "chief"}, {"name": "ps"}, {"name": "evaluator"}, {"name": "head"}
SCHEDULER, SERVERS, SERVER = {"name": "scheduler"}, {"name": "server", "replicas": 2}, {"name": "server"}
MAIN = {"name": "main", "image": "ray:1"}
NO_COMMAND = {"spec": {"containers": [MAIN]}}
EMPTY_COMMAND = {"spec": {"containers": [{**MAIN, "command": []}]}}
COMMAND = {"spec": {"containers": [{**MAIN, "command": ["python3", "train.py"]}]}}


def roles(*given: Json, **spec: Any) -> Json:
    return {"framework": "tensorflow", "roles": [*given], **spec}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (roles(CHIEF, framework="torch"), r"spec.roles.*framework torch has no roles; remove or rename the others"),
        (roles(CHIEF, framework="none"), "framework none has no roles"),
        (roles({"name": "mayor"}), r"roles\[0\].name: Unsupported value.*chief.*ps.*evaluator"),
        (roles({"name": "worker"}), r"roles\[0\].name: Unsupported value"),
        (roles({"name": "chief", "replicas": 2}), r"roles\[0\].replicas.*one member of this role; set replicas to 1"),
        (roles({"name": "evaluator", "replicas": 2}), "one member of this role; set replicas to 1"),
        (roles(CHIEF, CHIEF), r"spec.roles\[1\].*Duplicate value"),
        (roles(PS), "the framework needs the role chief if it has the role ps; add it to roles"),
        (roles(PS, EVALUATOR), "needs the role chief"),
        (roles(CHIEF, {"name": "ps", "replicas": 0}), r"replicas.*greater than or equal to 1"),
        (roles(CHIEF, {"name": "ps", "replicas": 1001}), r"replicas.*less than or equal to 1000"),
        (roles({"name": "chief", "image": ""}), r"roles\[0\].image.*at least 1 chars"),
        (roles({"name": "chief", "volumes": [{"emptyDir": {}}]}), r"roles\[0\].volumes\[0\].name: Required"),
        (roles({"name": "chief", "env": [{"value": "1"}]}), r"roles\[0\].env\[0\].name: Required"),
        (roles(framework="ray"), "the framework needs the role head; add it to roles"),
        (roles(CHIEF, HEAD, framework="ray"), "framework ray has the roles head; remove or rename the others"),
        (roles({"name": "head", "replicas": 2}, framework="ray"), "one member of this role; set replicas to 1"),
        (roles(HEAD, framework="ray", recovery={"agent": "none"}), r"recovery.agent.*ray and flower need the agent"),
        (roles(HEAD, framework="ray", template=NO_COMMAND), r"spec.template.*command of the first.*set command"),
        (roles(HEAD, framework="ray", template=EMPTY_COMMAND), r"spec.template.*command of the first.*set command"),
        (roles({**HEAD, "command": []}, framework="ray", template=COMMAND), "or of the role.*set command"),
        (
            roles(HEAD, framework="ray", template=COMMAND, lifecycle={"success": "AllWorkers"}),
            r"lifecycle.success.*the head or server decides; leave lifecycle.success out",
        ),
        (
            roles(SERVER, framework="flower", template=COMMAND, lifecycle={"success": "Worker0"}),
            "leave lifecycle.success out",
        ),
        (roles(CHIEF, PS, network={"dnsNames": "Master"}), r"network.dnsNames.*leave network.dnsNames out"),
        ({"framework": "paddle", "network": {"dnsNames": "Master"}}, "leave network.dnsNames out"),
        (roles(HEAD, framework="ray", processesPerReplica=4), "spec.processesPerReplica.*one process in each worker"),
        (roles(CHIEF, processesPerReplica=2), "spec.processesPerReplica.*one process in each worker; leave this out"),
        (roles(SCHEDULER, framework="dmlc"), "needs the roles scheduler and server; add them to roles"),
        (roles(framework="dmlc"), "needs the roles scheduler and server"),
        (roles(SCHEDULER, PS, framework="dmlc"), "framework dmlc has the roles scheduler, server; remove or rename"),
        (roles({**SCHEDULER, "replicas": 2}, SERVERS, framework="dmlc"), "one member of this role; set replicas to 1"),
        (
            roles(SCHEDULER, SERVERS, framework="dmlc", processesPerReplica=2),
            "processesPerReplica.*one process in each",
        ),
        (roles(SERVER, framework="paddle"), "framework paddle has no roles"),
        (roles(framework="flower"), "the framework needs the role server with replicas 1; add it to roles"),
        (roles({**SERVER, "replicas": 2}, framework="flower"), "needs the role server with replicas 1"),
        (roles(SERVER, {"name": "client"}, framework="flower"), r"roles\[1\].name: Unsupported value"),
        (roles(SERVER, HEAD, framework="flower"), "framework flower has the roles server; remove or rename the others"),
        (roles(SERVER, framework="flower", replicas=0), r"spec.replicas.*greater than or equal to 1"),
        (roles(SERVER, framework="flower", recovery={"agent": "none"}), r"recovery.agent.*flower need the agent"),
        (roles(SERVER, framework="flower", template=NO_COMMAND), r"spec.template.*command of the first.*set command"),
    ],
)
def test_invalid_roles_name_field_and_fix(lab: Namespace, spec: Json, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        lab.submit("odd", **spec)


def test_long_name_leaves_no_room_for_roles(lab: Namespace) -> None:
    name = "a" * 49
    lab.submit(name, framework="tensorflow")
    lab.remove(name)
    with pytest.raises(RefusedError, match=r"metadata.name is too long for the host names of its roles"):
        lab.submit(name, **roles(EVALUATOR))


def test_largest_group_is_within_the_cost_limits(lab: Namespace) -> None:
    """The cost of a rule is limited at run time, too."""
    env = [{"name": f"V{number}", "value": "x" * 50} for number in range(200)]
    everything = roles(*({**role, "env": env} for role in (CHIEF, PS, EVALUATOR)), replicas=10_000)
    everything["roles"][1]["replicas"] = 1000
    lab.submit("large", **everything)
    lab.change("large", lifecycle={"suspend": True})
    lab.remove("large")


def test_members_of_dmlc_are_accepted(lab: Namespace) -> None:
    for processes in ("auto", 1):
        lab.submit("servers", **roles(SCHEDULER, SERVERS, framework="dmlc", processesPerReplica=processes))
        lab.remove("servers")


def test_choices_that_fit_are_accepted(lab: Namespace) -> None:
    own = {"template": COMMAND, "recovery": {"agent": "auto"}}
    for spec in (
        roles({**HEAD, "command": ["python3", "driver.py"]}, framework="ray", **own),
        roles(CHIEF, PS, lifecycle={"success": "AllWorkers"}, processesPerReplica=1, network={"dnsNames": "All"}),
        roles(SCHEDULER, SERVERS, framework="dmlc", network={"dnsNames": "Master"}),
    ):
        lab.submit("fits", **spec)
        lab.remove("fits")


def test_roles_change_only_while_suspended(lab: Namespace) -> None:
    lab.submit("job", **roles(CHIEF, PS))
    for changed in ([CHIEF, {"name": "ps", "replicas": 2}], None):
        with pytest.raises(RefusedError, match="roles can be changed only while the job is suspended"):
            lab.change("job", roles=changed)
    lab.change("job", roles=[CHIEF, {"name": "ps", "replicas": 2}], lifecycle={"suspend": True})
    lab.remove("job")


@pytest.fixture
def training(plane: Plane, granted: None, lab: Namespace) -> Iterator[Namespace]:
    """A running group of two workers, with all roles of TensorFlow."""
    with operator(plane, "roles") as op:
        lab.submit(**roles(CHIEF, {"name": "ps", "image": "example.com/server:1"}, EVALUATOR))
        lab.until_phase("Running")
        yield lab
        assert not op.bugs()
    lab.remove("job")


def test_lost_worker_returns_alone_and_chief_decides(training: Namespace) -> None:
    lab = training
    names = {"job-chief-0-1", "job-ps-0-1", "job-evaluator-0-1", "job-worker-0-1"}
    assert set(lab.pods()) == {*names, "job-worker-1-1"}
    assert lab.pods()["job-ps-0-1"]["spec"]["containers"][0]["image"] == "example.com/server:1"
    assert [(role["name"], role["readyReplicas"]) for role in lab.status()["roles"]] == [
        ("worker", 2),
        ("chief", 1),
        ("ps", 1),
        ("evaluator", 1),
    ]
    assert (lab.status()["ready"], lab.status()["replicas"]) == ("5/5", 2)
    lab.plane.forget(lab._pods("job-worker-1-1"))
    until(lambda: "job-worker-1-1-r1" in lab.pods(), 30, "a new pod for the worker")
    until(lambda: lab.status()["ready"] == "5/5", 30, "all members")
    assert (set(lab.pods()), lab.status()["attempt"]) == ({*names, "job-worker-1-1-r1"}, 1)
    assert lab.status()["restarts"] == {"failures": 0, "disruptions": 1, "resizes": 0}
    lab.ends("job-chief-0-1", 0)
    lab.until_phase("Complete")
    assert lab.condition("Complete")["message"] == "chief 0 succeeded"
    until(lambda: set(lab.pods()) == {"job-chief-0-1"}, 30, "the servers to be deleted")


def test_lost_server_restarts_the_group(training: Namespace) -> None:
    lab = training
    lab.ends("job-ps-0-1", 1)
    until(lambda: "job-ps-0-2" in lab.pods(), 30, "the next attempt")
    lab.until_phase("Running")
    assert lab.status()["lastFailure"]["pod"] == "job-ps-0-1"
    assert (lab.status()["attempt"], len(lab.pods())) == (2, 5)
