"""The NetworkPolicies of operator and jobs on nodes that enforce them: which pods connect, with and without policies."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from dev.demo import install
from dev.demo.commands import Cluster, show
from dev.demo.target import python
from dev.localcluster.addresses import API_PORT, GATEWAY, KUBERNETES_SERVICE
from tests.cluster.elastic_group import LONG, a_node_each, trains
from tests.cluster.failing_training import TRAIN, fail
from tests.cluster.kube import IMAGE, Json, Kube, job, main_container

pytestmark = LONG

NODES = ("node1", "node2", "node3")
PROMETHEUS = {"app": "prometheus"}
METRICS, COORDINATOR, PLAIN = 8080, 8443, 9000
CONNECT = """
import json, socket, sys

def reached(target):
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 3).close()
    except OSError:
        return False
    return True

print(json.dumps([target for target in sys.argv[1:] if reached(target)]))
"""
LISTEN = f"""
import http.server, threading
server = http.server.ThreadingHTTPServer(("", {PLAIN}), http.server.BaseHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""
KUBELET: Json = {"tcpSocket": {"port": PLAIN}, "periodSeconds": 1}
"""A probe of the kubelet's, which comes from the node and not from a pod."""


@dataclass(frozen=True)
class Pod:
    """A pod from which tests connect."""

    kube: Kube
    name: str

    def reaches(self, *targets: str) -> set[str]:
        """Return the targets that accept a connection."""
        return set(json.loads(self.kube.run("exec", self.name, "--", "python3", "-c", CONNECT, *targets)))

    def at(self, port: int) -> str:
        return f"{self.kube.get('pod', self.name)['status']['podIP']}:{port}"

    @property
    def node(self) -> str:
        return str(self.kube.get("pod", self.name)["spec"]["nodeName"])


@pytest.fixture(scope="module", autouse=True)
def _heeded(cluster: Cluster) -> Iterator[None]:
    """Enforce NetworkPolicies on the nodes. At the end the operator is installed with the chart's defaults again."""
    show([*python("dev.localcluster"), "policies"])
    yield
    install.install(cluster)


@pytest.fixture
def other(kube: Kube) -> Iterator[Kube]:
    """Return another namespace."""
    made = kube.other(f"{kube.namespace}-other")
    made.run("create", "namespace", made.namespace)
    yield made
    made.run("delete", "namespace", made.namespace, "--wait=false")


def isolate(cluster: Cluster, monitoring: Kube) -> None:
    """Install the operator with both kinds of policies, and a Prometheus that may scrape all pods."""
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": monitoring.namespace}}}
    peers = [{**here, "podSelector": {"matchLabels": PROMETHEUS}}]
    values = {
        "enabled": True,
        # The address of this machine too, from which `invariants` ask.
        "metricsFrom": [*peers, {"ipBlock": {"cidr": f"{GATEWAY}/32"}}],
        "apiServer": {"cidrs": [f"{GATEWAY}/32"], "ports": [API_PORT]},
        "jobs": {"enabled": True, "from": peers},
    }
    install.install(cluster, "--set-json", f"networkPolicy={json.dumps(values)}")


def on_every_node(kube: Kube, name: str, labels: Json | None = None) -> list[Pod]:
    """Create a pod on each node that listens on PLAIN."""
    main = {"name": "main", "image": IMAGE, "command": ["python3", "-m", "http.server", str(PLAIN)]}
    pods: list[Json] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{node}", "labels": labels or {}},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [main]},
        }
        for node in NODES
    ]
    kube.apply(*pods)
    names = [pod["metadata"]["name"] for pod in pods]
    kube.run("wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/{each}" for each in names))
    return [Pod(kube, each) for each in names]


def trained(kube: Kube) -> list[Pod]:
    """Return the workers of a job, one on each node, once it trains: they reach each other and the coordinator."""
    manifest = a_node_each(job(framework="torch", replicas=3, processesPerReplica=1))
    main_container(manifest).update(command=["python3", "-c", LISTEN + TRAIN], readinessProbe=KUBELET)
    kube.apply(manifest)
    step = trains(kube, 3, seconds=180)["progress"]["step"]
    kube.until(lambda: kube.status("job")["progress"]["step"] > step, 60, "a later step")
    kube.until(lambda: kube.status("job")["ready"] == "3/3", 30, "answers to the kubelet's probes")
    return workers(kube, "job")


def workers(kube: Kube, name: str) -> list[Pod]:
    found = {pod["metadata"]["labels"]["trainyard.dev/index"]: pod["metadata"]["name"] for pod in kube.pods(name)}
    return [Pod(kube, found[index]) for index in sorted(found)]


def other_job(kube: Kube) -> list[Pod]:
    """Create another job with a worker on each node."""
    manifest = job("other", replicas=3)
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    chosen: dict[str, Any] = {"matchLabels": {"trainyard.dev/job-name": "other"}}
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = [{**spread, "labelSelector": chosen}]
    kube.apply(manifest)
    kube.wait_phase("other", "Running", 60)
    return workers(kube, "other")


def operators(kube: Kube) -> list[Pod]:
    """Return both operators."""
    there = kube.other(install.NAMESPACE)
    found = there.find_all("pods", "app.kubernetes.io/name=trainyard,app.kubernetes.io/component=operator")
    going = [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return [Pod(there, name) for name in going]


def forwarded(pod: Pod) -> bool:
    """Return whether PLAIN answers through `kubectl port-forward`."""
    command = pod.kube.cluster.kubectl_command("-n", pod.kube.namespace, "port-forward", f"pod/{pod.name}", f":{PLAIN}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=pod.kube.cluster.environment) as going:
        try:
            assert going.stdout
            port = int(going.stdout.readline().partition("127.0.0.1:")[2].split()[0])
            with closing(socket.create_connection(("127.0.0.1", port), 5)) as connection:
                connection.settimeout(10)
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return connection.recv(100).startswith(b"HTTP/")
        finally:
            going.terminate()


def test_without_policies_all_pods_reach_each_other(kube: Kube, other: Kube) -> None:
    """The baseline: the connections that fail in the other tests fail because of the policies."""
    install.install(kube.cluster, "--set", "networkPolicy.jobs.enabled=false")
    group = trained(kube)
    store = group[0].at(29500)
    targets = {store, *(worker.at(PLAIN) for worker in group)}
    asked = operators(kube)
    ports = {pod.at(port) for pod in asked for port in (METRICS, COORDINATOR)}
    strangers = [*other_job(kube), *on_every_node(kube, "plain"), *on_every_node(other, "plain")]
    assert {pod.node for pod in strangers} == set(NODES)
    for pod in strangers:
        assert pod.reaches(*targets, *ports) == targets | ports, pod.name
    plain = strangers[-1].at(PLAIN)
    assert all(pod.reaches(plain) == {plain} for pod in asked)


def test_only_group_and_named_peers_reach_workers(kube: Kube, other: Kube) -> None:
    isolate(kube.cluster, other)
    group = trained(kube)
    store = group[0].at(29500)
    targets = {store, *(worker.at(PLAIN) for worker in group)}
    for pod in [*other_job(kube), *on_every_node(kube, "plain"), *on_every_node(other, "plain")]:
        assert pod.reaches(*targets) == set(), f"{pod.name} on {pod.node}"
    # The labels alone, in another namespace than the one named, are not enough.
    for pod in on_every_node(kube, "prometheus", PROMETHEUS):
        assert pod.reaches(*targets) == set(), f"{pod.name} on {pod.node}"
    for pod in [*group, *on_every_node(other, "prometheus", PROMETHEUS)]:
        assert pod.reaches(*targets) == targets, f"{pod.name} on {pod.node}"
    assert forwarded(group[0]), "kubectl port-forward comes in as before"
    fail(kube, group[1].name)
    assert trains(kube, 3, after=1, seconds=120)["restarts"]["failures"] == 1
    assert kube.run("get", "networkpolicy", "job", "-o", "name")
    store = workers(kube, "job")[0].at(29501)
    assert group[1].reaches(store) == {store}
    assert Pod(kube, "plain-node1").reaches(store) == set(), "after a fault as before"


def test_operator_traffic_is_limited_to_its_known_peers(kube: Kube, other: Kube) -> None:
    isolate(kube.cluster, other)
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running", 60)
    asked = operators(kube)
    assert len(asked) == 2
    metrics, coordinators = ({pod.at(port) for pod in asked} for port in (METRICS, COORDINATOR))
    for pod in workers(kube, "job"):
        assert pod.reaches(*metrics, *coordinators) == coordinators, f"{pod.name} on {pod.node}"
    for pod in [*on_every_node(kube, "plain"), *on_every_node(other, "plain")]:
        assert pod.reaches(*metrics, *coordinators) == set(), f"{pod.name} on {pod.node}"
    for pod in on_every_node(other, "prometheus", PROMETHEUS):
        assert pod.reaches(*metrics, *coordinators) == metrics, f"{pod.name} on {pod.node}"
    servers = {f"{KUBERNETES_SERVICE}:443", f"{GATEWAY}:{API_PORT}"}
    elsewhere = {Pod(kube, f"plain-{node}").at(PLAIN) for node in NODES}
    for pod in asked:
        assert pod.reaches(*servers, *elsewhere) == servers, f"{pod.name} on {pod.node}"
    kube.run("delete", "tj", "job", "--timeout=30s")
    output = kube.cluster.helm_command("test", install.RELEASE, "--namespace", install.NAMESPACE, "--logs")
    assert "the job completed: the installation works" in output
    # The kubelet asks every few seconds, and from outside of the policy's peers.
    for made in operators(kube):
        [status] = made.kube.get("pod", made.name)["status"]["containerStatuses"]
        assert (status["ready"], status["restartCount"]) == (True, 0)


def test_policy_state_exists_only_inside_the_nodes() -> None:
    """It is removed together with the nodes."""

    def output_of(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    for command in (("ipset", "list", "-name"), ("iptables-save",)):
        assert "KUBE-" not in output_of(*command)
        assert "KUBE-" in output_of(*python("dev.localcluster"), "node", "exec", "1", "--", *command)


def test_rebooted_node_enforces_policies_again(kube: Kube, other: Kube) -> None:
    isolate(kube.cluster, other)
    show([*python("dev.localcluster"), "node", "stop", "2"])
    show([*python("dev.localcluster"), "node", "start", "2"])
    group = trained(kube)
    targets = {worker.at(PLAIN) for worker in group}
    for pod in on_every_node(other, "plain"):
        assert pod.reaches(*targets) == set(), f"{pod.name} on {pod.node}"
    for pod in on_every_node(other, "prometheus", PROMETHEUS):
        assert pod.reaches(*targets) == targets, f"{pod.name} on {pod.node}"
