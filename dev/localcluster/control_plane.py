"""etcd, kube-apiserver, kube-controller-manager, kube-scheduler and CoreDNS, as processes of the host.

They listen on the bridge's address, which only nodes and this host reach, and etcd on loopback with certificates of its
own authority. The controller manager and the scheduler listen nowhere, but for the former's metrics in the scale profile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from dev.localcluster import processes, volumes
from dev.localcluster.addresses import (
    API_PORT,
    CONTROLLER_MANAGER_PORT,
    DNS_DOMAIN,
    ETCD_PEER_PORT,
    ETCD_PORT,
    GATEWAY,
    SERVICE_NETWORK,
)
from dev.localcluster.api import Api, wait_until
from dev.localcluster.kubeconfig import client_configuration, write_private
from dev.localcluster.pki import FRONT_PROXY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dev.localcluster.paths import Paths

DAEMONS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "coredns")
READY_SECONDS: Final = 60.0
# Who of those that run in the cluster has asked for what: not the cluster's own programs, which ask all the time.
AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}
RBAC_PATH: Final = "/apis/rbac.authorization.k8s.io/v1"
DNS_RULES: Final = (
    {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
)
# Names of the cluster are answered, all others do not exist: nothing here may depend on the world outside.
COREFILE: Final = """\
{domain}:53 10.in-addr.arpa:53 {{
  bind {address}
  errors
  kubernetes {domain} 10.in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
.:53 {{
  bind {address}
  errors
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""


def start(paths: Paths, tools: dict[str, Path], *, scale: bool) -> None:
    """Starts all five and waits until the API answers and pods can be created.

    Raises:
        LocalClusterError: it does not come to that.
    """
    write_private(paths.kubeconfig, json.dumps(client_configuration(paths.pki, "admin"), indent=1))
    for user in ("controller-manager", "scheduler", "dns"):
        write_private(_kubeconfig(paths, user), json.dumps(client_configuration(paths.pki, user)))
    processes.start(paths, "etcd", (tools["etcd"], *_etcd(paths)))
    processes.start(paths, "kube-apiserver", (tools["kube-apiserver"], *_api_server(paths, scale=scale)))
    api = Api(paths.pki)
    _await(paths, DAEMONS[:2], lambda: api.get("/readyz") is not None, "the API server did not become ready")
    # The others only now: the controller manager gives up where the API server takes more than 10 s.
    processes.start(
        paths, "kube-controller-manager", (tools["kube-controller-manager"], *_controller_manager(paths, scale=scale))
    )
    scheduler = paths.state / "scheduler.yaml"
    scheduler.write_text(json.dumps(scheduler_configuration(_kubeconfig(paths, "scheduler"), scale=scale), indent=1))
    processes.start(paths, "kube-scheduler", (tools["kube-scheduler"], f"--config={scheduler}", "--secure-port=0"))
    volumes.make(paths, api)
    _allow_dns(api)
    corefile = paths.state / "Corefile"
    corefile.write_text(COREFILE.format(domain=DNS_DOMAIN, address=GATEWAY, kubeconfig=_kubeconfig(paths, "dns")))
    processes.start(paths, "coredns", (tools["coredns"], "-conf", corefile))


def await_service_account(paths: Paths) -> None:
    """Until then the API refuses every pod.

    Raises:
        LocalClusterError: the controller manager does not make it.
    """
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    api = Api(paths.pki)
    _await(
        paths, DAEMONS, lambda: bool(api.get(path)), "the controller manager did not make the default service account"
    )


def dead(paths: Paths) -> list[str]:
    """Those of the daemons that should run and do not."""
    return [name for name in DAEMONS if processes.alive(paths, name) is None]


def scheduler_configuration(kubeconfig: Path, *, scale: bool) -> dict[str, Any]:
    """KubeSchedulerConfiguration; the client's limits can be set nowhere else."""
    limits = {"qps": 2000, "burst": 4000} if scale else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), **limits},
        "leaderElection": {"leaderElect": False},
    }


def _kubeconfig(paths: Paths, user: str) -> Path:
    return paths.state / f"{user}.kubeconfig"


def _await(paths: Paths, daemons: Sequence[str], ready: Callable[[], bool], failure: str) -> None:
    def obstacle() -> str:
        ended = [name for name in daemons if processes.alive(paths, name) is None]
        return f"{', '.join(ended)} has ended" if ended else ""

    failure = f"{failure}: see the logs in {paths.logs}"
    wait_until(ready, seconds=READY_SECONDS, failure=failure, obstacle=obstacle)


def _etcd(paths: Paths) -> list[str]:
    client, peer = f"https://127.0.0.1:{ETCD_PORT}", f"https://127.0.0.1:{ETCD_PEER_PORT}"
    flags = {
        "name": "only",
        "data-dir": paths.state / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"only={peer}",
        "log-level": "warn",
        "quota-backend-bytes": 4 << 30,
    }
    for prefix in ("", "peer-"):
        flags |= {
            f"{prefix}client-cert-auth": "true",
            f"{prefix}trusted-ca-file": paths.pki / "etcd-ca.crt",
            f"{prefix}cert-file": paths.pki / "etcd.crt",
            f"{prefix}key-file": paths.pki / "etcd.key",
        }
    # The cluster does not survive a crash of the machine, so it needs no durable writes.
    return [*_flags(flags), "--unsafe-no-fsync"]


def _api_server(paths: Paths, *, scale: bool) -> list[str]:
    pki = paths.pki
    flags: dict[str, Any] = {
        "etcd-servers": f"https://127.0.0.1:{ETCD_PORT}",
        "etcd-cafile": pki / "etcd-ca.crt",
        "etcd-certfile": pki / "etcd.crt",
        "etcd-keyfile": pki / "etcd.key",
        "bind-address": GATEWAY,
        "advertise-address": GATEWAY,
        "secure-port": API_PORT,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": f"https://kubernetes.default.svc.{DNS_DOMAIN}",
        "service-account-key-file": pki / "service-accounts.pub",
        "service-account-signing-key-file": pki / "service-accounts.key",
        "service-cluster-ip-range": SERVICE_NETWORK,
        "kubelet-client-certificate": pki / "admin.crt",
        "kubelet-client-key": pki / "admin.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "allow-privileged": "true",
        # For the APIs of others that stand behind this one, such as the metrics'.
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": FRONT_PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": pki / f"{FRONT_PROXY}.crt",
        "proxy-client-key-file": pki / f"{FRONT_PROXY}.key",
        # Calls webhooks at their pods' addresses: the host has routes to pods, but no kube-proxy.
        "enable-aggregator-routing": "true",
    }
    if scale:  # the defaults would slow down what a benchmark measures
        flags |= {"max-requests-inflight": 3000, "max-mutating-requests-inflight": 1500}
    else:
        policy = paths.state / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        flags |= {"audit-policy-file": policy, "audit-log-path": paths.audit, "audit-log-mode": "batch"}
    return _flags(flags)


def _controller_manager(paths: Paths, *, scale: bool) -> list[str]:
    flags: dict[str, Any] = {
        "kubeconfig": _kubeconfig(paths, "controller-manager"),
        "service-account-private-key-file": paths.pki / "service-accounts.key",
        "root-ca-file": paths.pki / "ca.crt",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "secure-port": 0,
        **volumes.FLAGS,
    }
    if scale:  # kwok's nodes renew their leases every 10 s only, so Kubernetes' own patience of 50 s stays
        flags |= {"kube-api-qps": 1000, "kube-api-burst": 2000}
        # Its metrics say how many calls its controllers make, which a benchmark of operators that lean on them must count.
        flags |= {
            "bind-address": "127.0.0.1",
            "secure-port": CONTROLLER_MANAGER_PORT,
            "authorization-always-allow-paths": "/metrics",
        }
    else:  # a dead node is seen in 20 s; a shorter patience would take a busy machine's nodes for dead
        flags |= {"node-monitor-grace-period": "20s", "node-monitor-period": "1s"}
        # Autoscalers look as often as their metrics are new.
        flags |= {"horizontal-pod-autoscaler-sync-period": "5s"}
    return _flags(flags)


def _flags(flags: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _allow_dns(api: Api) -> None:
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "coredns"},
        "rules": list(DNS_RULES),
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "coredns"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "coredns"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "system:coredns"}],
    }
    api.create(f"{RBAC_PATH}/clusterroles", role)
    api.create(f"{RBAC_PATH}/clusterrolebindings", binding)
