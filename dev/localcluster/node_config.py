"""The configuration files of one node's programs. Pure: text out of facts. (JSON is YAML, so no YAML writer is needed.)"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dev.localcluster.addresses import CLUSTER_NETWORK, DNS_DOMAIN, GATEWAY, node_name, pod_network
from dev.localcluster.cgroups import group_name

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_IMAGE: Final = "localhost/pause:1"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
CONTAINERD_STATE: Final = "/run/containerd"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the files depend on."""

    number: int
    disk: Path
    pki: Path
    proxy_kubeconfig: Path
    cni_programs: Path
    runc: Path
    unified_cgroups: bool


def kubelet(facts: NodeFacts) -> dict[str, Any]:
    """KubeletConfiguration of a node that shares its disk and cgroup hierarchy with others."""
    certificate = facts.pki / node_name(facts.number)
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{facts.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{certificate}.crt",
        "tlsPrivateKeyFile": f"{certificate}.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group_name(facts.number)}",
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "clusterDNS": [GATEWAY],
        "clusterDomain": DNS_DOMAIN,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # The disk is the host's, and the images cannot be pulled again: a filling disk must not make the kubelet
        # evict pods or delete images.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        # Quick to see a dead node, and quick to try a dead container again. (The frequency is also the time limit of
        # each heartbeat: at 1 s, a busy machine's nodes would be taken for dead.)
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
    }
    if not facts.unified_cgroups:
        configuration["failCgroupV1"] = False
    return configuration


def kube_proxy(facts: NodeFacts) -> dict[str, Any]:
    """KubeProxyConfiguration. Connection tracking limits are the host's and stay as they are."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(facts.proxy_kubeconfig)},
        "mode": "nftables",
        "clusterCIDR": str(CLUSTER_NETWORK),
        "detectLocalMode": "ClusterCIDR",
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def cni(facts: NodeFacts) -> dict[str, Any]:
    """The pods' network: a bridge within the node. Nothing leads out of the cluster, so there is no masquerade."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pod_network(facts.number)}]],
            "dataDir": "/run/cni-addresses",  # addresses are free again after a power failure
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}


def containerd(facts: NodeFacts) -> str:
    """Containerd's configuration (TOML).

    Its state is on the node's own /run, so that a power cut looks to it like a reboot.
    """
    text = json.dumps  # a JSON string is a TOML string
    return f"""\
version = 3
root = {text(f"{facts.disk}/containerd")}
state = "{CONTAINERD_STATE}"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins.'io.containerd.internal.v1.opt']
  path = {text(f"{facts.disk}/opt")}
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE, as in a container, every container would fail on its OOM score.
  restrict_oom_score_adj = true
  # Its profile would be loaded into the host's kernel, and stay there.
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = {text(str(facts.runc))}
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = [{text(str(facts.cni_programs))}]
  conf_dir = {text(f"{facts.disk}/cni")}
"""


def write(facts: NodeFacts) -> None:
    """Writes the files onto the node's disk."""
    (facts.disk / "cni").mkdir(parents=True, exist_ok=True)
    (facts.disk / "cni" / "10-pods.conflist").write_text(json.dumps(cni(facts), indent=1))
    (facts.disk / "kubelet.yaml").write_text(json.dumps(kubelet(facts), indent=1))
    (facts.disk / "kube-proxy.yaml").write_text(json.dumps(kube_proxy(facts), indent=1))
    (facts.disk / "containerd.toml").write_text(containerd(facts))
