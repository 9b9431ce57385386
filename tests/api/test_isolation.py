"""The NetworkPolicy of a job on a real API server, with the permissions that the chart grants for it."""

import json

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.polling import until
from tests.unit.helm.chart import Chart

POLICY = "/apis/networking.k8s.io/v1/namespaces/lab/networkpolicies/guarded"


def test_foreign_policy_with_the_same_name_is_kept(plane: Plane, chart: Chart, lab: Namespace) -> None:
    values = {"networkPolicy": {"jobs": {"enabled": True}}}
    plane.grant_chart(chart, values)
    theirs = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "guarded"}}
    plane.call("POST", POLICY.removesuffix("/guarded"), {**theirs, "spec": {"podSelector": {}}})
    with operator(plane, "refused", isolate_jobs="true"):
        lab.submit("guarded", replicas=1)
        until(lambda: lab.condition("Running", "guarded").get("reason") == "NameConflict", 30, "the condition to tell")
        assert plane.find(POLICY)["spec"]["podSelector"] == {}
        plane.forget(POLICY)
        lab.until_phase("Running", "guarded")
        lab.remove("guarded")


def test_policy_is_deleted_with_its_job(plane: Plane, chart: Chart, lab: Namespace) -> None:
    values = {"networkPolicy": {"jobs": {"enabled": True}}}
    plane.grant_chart(chart, values)
    set_by_chart = chart.render(values).environment()["TRAINYARD_JOB_PEERS"]
    assert set_by_chart is not None
    with operator(plane, "guarding", isolate_jobs="true", job_peers=set_by_chart):
        lab.submit("guarded", replicas=2)
        lab.until_phase("Running", "guarded")
        policy = plane.find(POLICY)
        [rule] = policy["spec"]["ingress"]
        own, operators = rule["from"]
        assert own == {"podSelector": policy["spec"]["podSelector"]}
        assert [operators] == json.loads(set_by_chart)
        selected = policy["spec"]["podSelector"]["matchLabels"]
        pods = plane.find("/api/v1/namespaces/lab/pods")["items"]
        behind = {pod["metadata"]["name"] for pod in pods if selected.items() <= pod["metadata"]["labels"].items()}
        assert behind == {"guarded-worker-0-1", "guarded-worker-1-1"}
        lab.remove("guarded")
        until(lambda: not plane.find(POLICY), 30, "the policy to go")
