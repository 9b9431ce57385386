"""What the chart renders is what Kubernetes takes, whatever the values are that its schema admits: by kubeconform and the server's dry run."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from tests.api.chart_values import Judge, values
from tests.api.plane import running
from tests.support import third_party_crds
from tests.support.control_plane import RefusedError as ServerRefusedError
from tests.unit.helm.chart import CHART, Chart, RefusedError

EXAMPLES = 60
SENTENCES = (
    "replicas: ",
    "coordinator.tls: existingSecret and certManager.enabled exclude each other",
    "coordinator.tls.certManager.issuerRef: set the Issuer",
    "metrics.serviceMonitor: it needs the Service",
    "metrics.prometheusRule.disabled: there is no alert",
    "metrics.prometheusRule.alertLabels",
    "metrics.prometheusRule.runbookUrl: Prometheus evaluates two braces",
    'image.tag: "latest" is no version',
    "needs admission.enabled",
    "use different ports",
    "resources: a request of",
    "tolerations: ",
    "extraEnv: ",
    "topologySpreadConstraints: ",
    "is longer than interval",
    "metrics.podMonitor: networkPolicy.jobs.enabled blocks scrapes of workers",
    "serviceAccount: the account `default`",
)
"""What templates refuse, for what a schema cannot say."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    folder = tmp_path_factory.mktemp("judge")
    with running(folder / "state", ["lab", "office"], third_party_crds.crds()) as plane:
        yield Judge(plane, folder)


def judged(judge: Judge, chart: Chart, wanted: dict[str, Any]) -> list[str]:
    """Complaints of both."""
    release = chart.render(wanted)
    findings = judge.conforms(list(release.manifests))
    for manifest in release.manifests:
        try:
            judge.take(manifest)
        except ServerRefusedError as error:
            findings.append(str(error))
    return findings


@pytest.mark.parametrize("name", ["defaults", *sorted(path.name for path in (CHART / "ci").iterdir())])
def test_common_values_are_accepted_by_the_api_server(name: str, judge: Judge, chart: Chart) -> None:
    wanted = {} if name == "defaults" else yaml.safe_load((CHART / "ci" / name).read_text())
    assert judged(judge, chart, wanted) == []


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[*HealthCheck], derandomize=True, database=None)
@given(wanted=values())
def test_values_of_all_kinds(judge: Judge, chart: Chart, wanted: dict[str, Any]) -> None:
    try:
        findings = judged(judge, chart, wanted)
    except RefusedError as error:
        findings = [] if any(sentence in str(error) for sentence in SENTENCES) else [str(error)]
    assert findings == []


def test_both_see_what_is_wrong(judge: Judge, chart: Chart) -> None:
    service: Any = dict(chart.render().one("Service", "trainyard-metrics"))
    wrong = {**service, "spec": {**service["spec"], "selektor": {}}}
    (findings,) = judge.conforms([wrong])
    assert "selektor" in findings
    with pytest.raises(ServerRefusedError, match="selektor"):
        judge.take(wrong)
    (unknown,) = judge.conforms([{**service, "kind": "Servant"}])
    assert "Servant" in unknown
