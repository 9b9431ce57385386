"""From a kubeconfig or a pod's service account to an endpoint."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config

from tests.support.fake_api import FakeApi
from trainyard.kube import login
from trainyard.kube.login import LoginError, connect, endpoint
from trainyard.kube.resource import PODS


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "there", "context": {"cluster": "gone", "user": "u"}},
            {"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "lab"}},
        ],
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(server: str, user: dict[str, Any], **cluster: Any) -> None:
        path = kubeconfig(tmp_path / "config", server, user, **cluster)
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setattr(config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    return use


async def authorization(api: FakeApi) -> str | None:
    session = connect()
    try:
        await session.request("GET", PODS.path())
    finally:
        await session.close()
    return api.calls[-1].headers.get("Authorization")


async def test_a_kubeconfig_with_a_token(api: FakeApi, use: Any) -> None:
    use(api.url, {"token": "abc"})
    assert await authorization(api) == "Bearer abc"


async def test_a_kubeconfig_with_a_password(api: FakeApi, use: Any) -> None:
    use(api.url, {"username": "ann", "password": "secret"})
    assert await authorization(api) == "Basic " + base64.b64encode(b"ann:secret").decode()


async def test_a_kubeconfig_with_a_plugin(api: FakeApi, use: Any, tmp_path: Path) -> None:
    credential = {
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": "from-plugin"},
    }
    (tmp_path / "plugin").write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    (tmp_path / "plugin").chmod(0o755)
    exec_ = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(tmp_path / "plugin"),
        "interactiveMode": "Never",
    }
    use(api.url, {"exec": exec_})
    assert await authorization(api) == "Bearer from-plugin"


def test_tls_and_proxy_settings_are_kept(use: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    use(
        "https://server.invalid:6443/",
        {"token": "x"},
        **{"tls-server-name": "kubernetes", "insecure-skip-tls-verify": True},
    )
    here = endpoint()
    assert here.server == "https://server.invalid:6443"
    assert here.tls_server_name == "kubernetes"
    assert here.tls is not None
    assert not here.tls.check_hostname
    assert here.proxy is None, "the session reads the environment itself, and NO_PROXY with it"


def test_a_pods_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(LoginError, match="service account"):
        endpoint()
    (tmp_path / "token").write_text("projected\n")
    (tmp_path / "namespace").write_text("trainyard-system")
    (tmp_path / "ca.crt").write_text("not read here")
    monkeypatch.setattr(config.incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(config.incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(login, "_NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setattr(login, "_tls", lambda _: None)
    here = endpoint()
    assert (here.server, here.namespace) == ("https://10.0.0.1:443", "trainyard-system")
    assert isinstance(here.authorization, login.TokenSource)
    assert here.authorization._header == "Bearer projected"


@pytest.mark.parametrize("context", ["nowhere", "there"])
def test_unknown_context(use: Any, context: str) -> None:
    use("http://127.0.0.1:1", {"token": "x"})
    with pytest.raises(LoginError, match=context):
        endpoint(context)


def test_missing_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(LoginError, match="Set KUBECONFIG"):
        endpoint()


@pytest.mark.parametrize(("context", "namespace"), [(None, None), ("here", None), ("lab", "lab")])
def test_the_namespace_of_a_context(use: Any, context: str | None, namespace: str | None) -> None:
    use("https://example.com", {"token": "abc"})
    assert endpoint(context).namespace == namespace
