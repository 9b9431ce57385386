"""The pod of `helm test`: it is no operator, has the permissions that it needs, and runs where the operator looks."""

from tests.unit.helm.chart import Chart, Release


def test_it_is_no_operator(release: Release) -> None:
    pod = release.one("Pod", "trainyard-helm-test")
    chosen = release.one("Service", "trainyard-metrics")["spec"]["selector"]
    assert not chosen.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["image"] == release.container()["image"]


def test_it_may_write_jobs_and_nothing_else(chart: Chart) -> None:
    rules = chart.render({"admission": {"enabled": False}}).one("Role", "trainyard-helm-test")["rules"]
    assert rules == [
        {"apiGroups": ["trainyard.dev"], "resources": ["trainingjobs"], "verbs": ["create", "delete", "get"]}
    ]
    asked = chart.render().one("Role", "trainyard-helm-test")["rules"]
    assert asked[1] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}


def test_its_job_is_where_the_operator_looks(chart: Chart) -> None:
    release = chart.render({"watchNamespaces": ["lab", "team"], "imagePullSecrets": [{"name": "a"}, {"name": "b"}]})
    assert release.one("Role", "trainyard-helm-test")["metadata"]["namespace"] == "lab"
    (container,) = release.one("Pod", "trainyard-helm-test")["spec"]["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert (environment["HELM_TEST_NAMESPACE"], environment["HELM_TEST_PULL_SECRETS"]) == ("lab", "a,b")


def test_it_can_be_left_out(chart: Chart) -> None:
    assert not chart.render({"helmTest": {"enabled": False}}).all("Pod")
