"""The known network profiles, each with the source of its values. Pure data.

A profile sets what the pod's shape determines. Tuning that belongs to a release of a plugin stays with the plugin.
"""

from collections.abc import Iterable
from types import MappingProxyType

from trainyard.domain.state.rdma import RDMA_RESOURCES
from trainyard.scheduling.network_profile import NetworkProfile, NetworkProfiles, Proof, named

POD_INTERFACE = "eth0"
"""The name that every CNI plugin gives to a pod's first interface."""
GOOGLE = "https://github.com/GoogleCloudPlatform/container-engine-accelerators/blob/master"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
NETWORK_OPERATOR = "https://docs.nvidia.com/networking/display/kubernetes2570/quick-start/quick-start-k8s.html"
RXDM = "/fts/entrypoint_rxdm_container.sh"
LIBRARIES = "/usr/local/nvidia/lib64"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU_DEVICES = (*(f"/dev/nvidia{number}" for number in range(8)), "/dev/nvidiactl", "/dev/nvidia-uvm")


def _device_list(paths: Iterable[str]) -> str:
    """Return the value of the annotation by which Google's device injector gives devices to a sidecar."""
    return "".join(f"- path: {path}\n" for path in paths)


def _interfaces(networks: dict[str, str]) -> dict[str, str]:
    """Return the annotations by which GKE attaches networks. The names are those of Google's guides."""
    entries = ",".join(f'{{"interfaceName":"{name}","network":"{each}"}}' for name, each in networks.items())
    return {"networking.gke.io/default-interface": POD_INTERFACE, "networking.gke.io/interfaces": f"[{entries}]"}


_VERBS = NetworkProfile(
    source=f"{NETWORK_OPERATOR} (IPC_LOCK); {NCCL} (NCCL finds devices and, since 2.21, the GID of RoCE by itself)",
    devices=list(RDMA_RESOURCES),
    capabilities=["IPC_LOCK"],
    interface=POD_INTERFACE,
)
_PROFILES = {
    "tcp": NetworkProfile(
        source=f"{NCCL} (NCCL_NET)",
        interface=POD_INTERFACE,
        env={"NCCL_NET": "Socket"},
        sockets=True,
    ),
    "efa": NetworkProfile(
        source="https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html (resources);"
        " https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md (no FI_* variable is needed)",
        proof=Proof(resources=["vpc.amazonaws.com/efa"]),
        resources={"vpc.amazonaws.com/efa": 1, "hugepages-2Mi": "5120Mi"},
        interface=POD_INTERFACE,
        advice="request as many vpc.amazonaws.com/efa as the instance type has (32 on p5.48xlarge), and use an image with aws-ofi-nccl",
    ),
    "gpudirect-tcpx": NetworkProfile(
        source=f"{GOOGLE}/gpudirect-tcpx/nccl-test-latest.yaml and nccl-config-latest.yaml",
        proof=Proof(node_labels={INSTANCE_TYPE: ["a3-highgpu-8g"]}, gpus=8),
        capabilities=["IPC_LOCK"],
        interface=POD_INTERFACE,
        env={
            "LD_LIBRARY_PATH": LIBRARIES,
            "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
            "NCCL_GPUDIRECTTCPX_CTRL_DEV": POD_INTERFACE,
            # Google's own example mounts the sockets at /tmp, which is the plugin's default. A training keeps its /tmp.
            "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
            "NCCL_GPUDIRECTTCPX_FORCE_ACK": "0",
            "NCCL_GPUDIRECTTCPX_TX_COMPLETION_NANOSLEEP": "1000",
            "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "1000000",
            "NCCL_CROSS_NIC": "0",
            "NCCL_ALGO": "Ring",
            "NCCL_PROTO": "Simple",
            "NCCL_NSOCKS_PERTHREAD": "4",
            "NCCL_SOCKET_NTHREADS": "1",
            "NCCL_MAX_NCHANNELS": "8",
            "NCCL_MIN_NCHANNELS": "8",
            "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
            "NCCL_P2P_NET_CHUNKSIZE": "524288",
            "NCCL_P2P_PCI_CHUNKSIZE": "524288",
            "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
            "NCCL_NET_GDR_LEVEL": "PIX",
            "NCCL_P2P_PXN_LEVEL": "0",
        },
        annotations={
            "devices.gke.io/container.tcpx-daemon": _device_list(GPU_DEVICES),
            **_interfaces({POD_INTERFACE: "default", **{f"eth{n}": f"vpc{n}" for n in range(1, 5)}}),
        },
        volumes=[
            {"name": "tcpx-libraries", "hostPath": {"path": "/home/kubernetes/bin/nvidia/lib64"}},
            {"name": "tcpx-socket", "hostPath": {"path": "/run/tcpx"}},
            {"name": "tcpx-sys", "hostPath": {"path": "/sys"}},
            {"name": "tcpx-proc-sys", "hostPath": {"path": "/proc/sys"}},
        ],
        volume_mounts=[
            {"name": "tcpx-libraries", "mountPath": LIBRARIES},
            {"name": "tcpx-socket", "mountPath": "/run/tcpx"},
        ],
        sidecars=[
            {
                "name": "tcpx-daemon",
                "command": [
                    *("/tcpgpudmarxd/build/app/tcpgpudmarxd", "--gpu_nic_preset", "a3vm", "--gpu_shmem_type", "fd"),
                    *("--uds_path", "/run/tcpx", "--setup_param", '"--verbose 128 2 0 "'),
                ],
                "env": [{"name": "LD_LIBRARY_PATH", "value": LIBRARIES}],
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
                "volumeMounts": [
                    {"name": "tcpx-libraries", "mountPath": LIBRARIES},
                    {"name": "tcpx-socket", "mountPath": "/run/tcpx"},
                    {"name": "tcpx-sys", "mountPath": "/hostsysfs"},
                    {"name": "tcpx-proc-sys", "mountPath": "/hostprocsysfs"},
                ],
            }
        ],
        host_network=False,
        advice="networks with other names than vpc1 to vpc4: set networking.gke.io/interfaces in the template",
    ),
    "gpudirect-tcpxo": NetworkProfile(
        source=f"{GOOGLE}/gpudirect-tcpxo/nccl-test-latest.yaml and README.md;"
        " https://docs.nvidia.com/aicr/integrator-guide/gke-tcpxo-networking.md (IPC_LOCK)",
        proof=Proof(
            node_labels={
                INSTANCE_TYPE: ["a3-megagpu-8g"],
                "cloud.google.com/gke-accelerator": ["nvidia-h100-mega-80gb"],
            },
            gpus=8,
        ),
        capabilities=["IPC_LOCK"],
        interface=POD_INTERFACE,
        env={
            "LD_LIBRARY_PATH": LIBRARIES,
            "NCCL_LIB_DIR": LIBRARIES,
            "NCCL_FASTRAK_CTRL_DEV": POD_INTERFACE,
            "NCCL_FASTRAK_IFNAME": ",".join(f"eth{n}" for n in range(1, 9)),
            "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY": "/dev/aperture_devices",
        },
        annotations={
            "devices.gke.io/container.tcpxo-daemon": _device_list((*GPU_DEVICES, "/dev/dmabuf_import_helper")),
            **_interfaces({POD_INTERFACE: "default", **{f"eth{n}": f"vpc{n}" for n in range(1, 9)}}),
        },
        volumes=[
            {"name": "tcpxo-libraries", "hostPath": {"path": "/home/kubernetes/bin/nvidia"}},
            {"name": "tcpxo-sys", "hostPath": {"path": "/sys"}},
            {"name": "tcpxo-proc-sys", "hostPath": {"path": "/proc/sys"}},
            {"name": "tcpxo-aperture-devices", "hostPath": {"path": "/dev/aperture_devices"}},
        ],
        volume_mounts=[
            {"name": "tcpxo-libraries", "mountPath": "/usr/local/nvidia"},
            {"name": "tcpxo-aperture-devices", "mountPath": "/dev/aperture_devices"},
        ],
        sidecars=[
            {
                "name": "tcpxo-daemon",
                "command": ["/bin/sh", "-c"],
                "args": [f"chmod 755 {RXDM} && exec {RXDM} --num_hops=2 --num_nics=8"],
                "env": [{"name": "LD_LIBRARY_PATH", "value": LIBRARIES}],
                "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]}},
                "volumeMounts": [
                    {"name": "tcpxo-libraries", "mountPath": "/usr/local/nvidia"},
                    {"name": "tcpxo-sys", "mountPath": "/hostsysfs"},
                    {"name": "tcpxo-proc-sys", "mountPath": "/hostprocsysfs"},
                ],
            }
        ],
        host_network=False,
        advice="source ${NCCL_LIB_DIR}/nccl-env-profile.sh in the command: it has the tuning of the plugin's release",
    ),
    "gpudirect-rdma": NetworkProfile(
        source=f"{GOOGLE}/gpudirect-rdma/nccl-test.yaml and nccl-test-a4.yaml",
        proof=Proof(
            resources=["networking.gke.io.networks/rdma-*"],
            node_labels={
                INSTANCE_TYPE: ["a3-ultragpu-8g", "a4-highgpu-8g"],
                "cloud.google.com/gke-accelerator": ["nvidia-h200-141gb", "nvidia-b200"],
            },
            gpus=8,
        ),
        interface=POD_INTERFACE,
        env={"LD_LIBRARY_PATH": LIBRARIES},
        annotations=_interfaces({POD_INTERFACE: "default", **{f"eth{n + 2}": f"rdma-{n}" for n in range(8)}}),
        volumes=[
            {"name": "gib-libraries", "hostPath": {"path": "/home/kubernetes/bin/nvidia"}},
            {"name": "gib", "hostPath": {"path": "/home/kubernetes/bin/gib"}},
        ],
        volume_mounts=[
            {"name": "gib-libraries", "mountPath": "/usr/local/nvidia"},
            {"name": "gib", "mountPath": "/usr/local/gib"},
        ],
        host_network=False,
        advice="source /usr/local/gib/scripts/set_nccl_env.sh in the command: it selects the plugin and has its tuning",
    ),
    "coreweave-infiniband": NetworkProfile(
        source="https://docs.coreweave.com/products/networking/hpc-interconnect/nccl-configuration-reference",
        # It is no proof: CoreWeave offers the same resource on its nodes with RoCE.
        resources={"rdma/ib": 1},
        interface=POD_INTERFACE,
        env={"NCCL_IB_HCA": "ibp", "UCX_TLS": "tcp", "UCX_NET_DEVICES": POD_INTERFACE},
    ),
    "infiniband": _VERBS,
    "roce": _VERBS,
    # The resource of a shared device does not tell whether it is InfiniBand or RoCE. Pods need the same for both.
    "rdma": _VERBS.evolve(proof=Proof(resources=list(RDMA_RESOURCES))),
}
KNOWN_NETWORKS: NetworkProfiles = MappingProxyType({name: named(name, profile) for name, profile in _PROFILES.items()})
"""By name. For `auto` the first that is proved applies."""
