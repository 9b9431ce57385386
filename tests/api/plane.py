"""The API server of these tests: one that writes down who asked for what, and that grants what a test grants and no more."""

import base64
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from tests.support import permission_audit
from tests.support.control_plane import ControlPlane, RefusedError
from tests.unit.helm.chart import ROOT, Chart

Json = dict[str, Any]
HOME = "trainyard-system"
ACCOUNT = "trainyard"
CERTIFICATE = "trainyard-coordinator-cert"
SECRETS = f"/api/v1/namespaces/{HOME}/secrets"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
JOBS = "/apis/trainyard.dev/v1alpha1"
KINDS = {"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles"}
KINDS |= {"ClusterRoleBinding": "clusterrolebindings"}
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
POLICY |= {"omitStages": ["RequestReceived", "ResponseStarted"]}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as the server's audit log has it."""

    at: float
    """Seconds of the wall clock, which is the same for all on this machine."""
    credential: str
    """Tells one token from another of the same account."""
    verb: str
    resource: str
    namespace: str
    """Empty: in the whole cluster."""
    code: int

    @property
    def writes(self) -> bool:
        return self.verb not in {"get", "list", "watch"}


class Plane(ControlPlane):
    """A control plane with an audit log, on which real tokens of a ServiceAccount are used."""

    @override
    def _api_server(self) -> dict[str, Any]:
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(POLICY))
        flags = {"audit-policy-file": policy, "audit-log-path": self.folder / "audit.log", "audit-log-mode": "blocking"}
        # An admission plugin that OpenShift has: it is the only one that asks for `update` on finalizers.
        return {**super()._api_server(), **flags, "enable-admission-plugins": "OwnerReferencesPermissionEnforcement"}

    @contextmanager
    def hung(self) -> Iterator[None]:
        """No request gets an answer inside this block, and no client receives an error."""
        server = self._running["kube-apiserver"]
        server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send_signal(signal.SIGCONT)

    def namespace(self, name: str) -> None:
        """Make a namespace, and wait until pods can be made in it."""
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self._await(lambda: bool(self.find(f"/api/v1/namespaces/{name}/serviceaccounts/default")), "no account")

    def find(self, path: str) -> Json:
        """The object, or nothing."""
        try:
            return dict(self.call("GET", path))
        except RefusedError as error:
            if error.status != 404:
                raise
            return {}

    def forget(self, path: str) -> None:
        """Delete the object, if it is there."""
        if self.find(path):
            self.call("DELETE", path)

    def grant(self, manifest: Mapping[str, Any]) -> None:
        """Make or replace a role or a binding."""
        namespace = manifest["metadata"].get("namespace")
        place = f"{RBAC}/" + (f"namespaces/{namespace}/" if namespace else "") + KINDS[manifest["kind"]]
        one = f"{place}/{manifest['metadata']['name']}"
        if self.find(one):
            self.call("PUT", one, dict(manifest))
        else:
            self.call("POST", place, dict(manifest))

    def grant_chart(self, chart: Chart, values: Mapping[str, Any] | None = None) -> None:
        """What `helm install` grants."""
        release = chart.render(values)
        for kind in KINDS:
            for manifest in release.all(kind):
                self.grant(manifest)

    def empty_secret(self) -> None:
        """Make the Secret of the coordinator's certificate again, without data, as the chart does."""
        self.forget(f"{SECRETS}/{CERTIFICATE}")
        self.call("POST", SECRETS, {"metadata": {"name": CERTIFICATE}, "type": "Opaque"})

    def certificate(self) -> dict[str, bytes]:
        """What is in it."""
        data = self.find(f"{SECRETS}/{CERTIFICATE}").get("data") or {}
        return {name: base64.b64decode(value) for name, value in data.items()}

    def kubeconfig_of_a_pod(self, name: str) -> Path:
        """A kubeconfig with a token of the operator's account of its own, and with its namespace."""
        path = f"/api/v1/namespaces/{HOME}/serviceaccounts/{ACCOUNT}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self.call("POST", path, request)["status"]["token"]
        cluster = {"server": self.server, "certificate-authority": str(self.folder / "certificates/apiserver.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "only", "cluster": cluster}],
            "users": [{"name": "only", "user": {"token": token}}],
            "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only", "namespace": HOME}}],
            "current-context": "only",
        }
        made = self.folder / f"{name}.kubeconfig"
        made.write_text(json.dumps(config))
        return made

    def requests(self, since: float = 0.0) -> list[Request]:
        """What the operators have asked for, oldest first."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        found = [_request(json.loads(line)) for line in lines if f"serviceaccount:{HOME}:{ACCOUNT}" in line]
        return [request for request in found if request is not None and request.at >= since]


def _request(entry: Json) -> Request | None:
    credentials = entry["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id")
    if not credentials or "objectRef" not in entry:
        return None
    about = entry["objectRef"]
    name = about["resource"] + (f".{about['apiGroup']}" if about.get("apiGroup") else "")
    name += f"/{about['subresource']}" if about.get("subresource") else ""
    at = time.mktime(time.strptime(entry["requestReceivedTimestamp"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
    at += float("0" + entry["requestReceivedTimestamp"][19:-1])
    return Request(
        at,
        credentials[0],
        entry["verb"],
        name,
        about.get("namespace", ""),
        entry.get("responseStatus", {}).get("code", 0),
    )


@contextmanager
def running(
    folder: Path, namespaces: Sequence[str], more: Sequence[Json] = (), flags: Mapping[str, str] | None = None
) -> Iterator[Plane]:
    """A control plane with the CRD and those of others, the operator's account and these namespaces.

    `flags`: more flags of the API server.
    """
    crds: list[Json] = [
        yaml.load(path.read_text(), Loader=yaml.CSafeLoader) for path in sorted((ROOT / "crds").glob("*.yaml"))
    ]
    plane = Plane(folder, flags or {})
    try:
        plane.start([*crds, *more])
        for name in (HOME, *namespaces):
            plane.namespace(name)
        plane.call("POST", f"/api/v1/namespaces/{HOME}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
        yield plane
    finally:
        plane.stop()
        permission_audit.record(plane.folder / "audit.log")
