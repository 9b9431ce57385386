"""Which network NCCL took, by lines that its releases 2.19 to 2.29 print; and what of them reaches the log."""

from pathlib import Path

import pytest

from tests.unit.agent.agent_process import running_agent
from trainyard_agent.nccl_network import VARIABLES, NcclLines, Network, Transport, find_network
from trainyard_agent.rank_defaults import network_variables, rank_defaults

NCCL_2_19_ROCE = """\
dgxh100-4:460770:460770 [0] NCCL INFO Bootstrap : Using enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; OOB enp220s0np0:11.1.128.136<0>
dgxh100-4:460770:460842 [0] NCCL INFO Using non-device net plugin version 0
dgxh100-4:460770:460842 [0] NCCL INFO Using network IB
"""
NCCL_2_28_IB = """\
nccl-sleep:2620971:2620971 [3] NCCL INFO NCCL_IB_HCA set to mlx5_0
nccl-sleep:2620971:2620971 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:172.25.30.42<0>
nccl-sleep:2620971:2620971 [3] NCCL INFO Initialized NET plugin IB
nccl-sleep:2620971:2620971 [3] NCCL INFO Assigned NET plugin IB to comm
nccl-sleep:2620971:2620971 [3] NCCL INFO Assigned GIN plugin GIN_IB_GDAKI to comm
nccl-sleep:2620971:2620971 [3] NCCL INFO Using network IB
"""
NCCL_2_27_SOCKET = """\
llama-node-0-0:152:386 [0] NCCL INFO NET/IB : No device found.
llama-node-0-0:152:386 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.4.51<0>
llama-node-0-0:152:386 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.51<0>
llama-node-0-0:152:386 [0] NCCL INFO Initialized NET plugin Socket
llama-node-0-0:152:386 [0] NCCL INFO Assigned NET plugin Socket to comm
"""
NCCL_2_21_SOCKET = """\
user:852750:852802 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
user:852750:852802 [0] NCCL INFO NET/Socket : Using [0]ibs85f0:192.168.1.14<0> [1]ib0:192.168.1.15<0>
user:852750:852802 [0] NCCL INFO Using network Socket
"""
EFA = """\
8h200-2:6831:6840 [0] NCCL INFO NET/OFI Selected Provider is efa (found 16 nics)
8h200-2:6831:6840 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so.
8h200-2:6831:6840 [0] NCCL INFO Using network Libfabric
"""
OLDER_EFA = "worker-0:21:21 [0] NCCL INFO Using network AWS Libfabric\n"
HPC_X = """\
bigo:1884:2298 [0] NCCL INFO P2P plugin IBext_v8
bigo:1884:2298 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [RO]; OOB bond0.526:169.136.106.9<0>
bigo:1884:2298 [0] NCCL INFO Using network IBext_v8
"""
RCCL = "e05r3n09:929:929 [2] NCCL INFO NET/IB : Using [0]mlx5_3:1/IB ; OOB ib0:11.5.5.50<0>\ne05r3n09:929:929 [2] NCCL INFO Using network IB\n"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        pytest.param(NCCL_2_19_ROCE, Network(Transport.ROCE, "IB", "[0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE"), id="RoCE"),
        pytest.param(NCCL_2_28_IB, Network(Transport.INFINIBAND, "IB", "[0]mlx5_0:1/IB"), id="InfiniBand"),
        pytest.param(RCCL, Network(Transport.INFINIBAND, "IB", "[0]mlx5_3:1/IB"), id="RCCL"),
        pytest.param(NCCL_2_27_SOCKET, Network(Transport.SOCKETS, "Socket"), id="TCP"),
        pytest.param(NCCL_2_21_SOCKET, Network(Transport.SOCKETS, "Socket"), id="TCP, before 2.26"),
        pytest.param(EFA, Network(Transport.PLUGIN, "Libfabric"), id="EFA"),
        pytest.param(OLDER_EFA, Network(Transport.PLUGIN, "AWS Libfabric"), id="an older plugin of EFA"),
        pytest.param(
            HPC_X,
            Network(Transport.ROCE, "IBext_v8", "[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE}"),
            id="the plugin of NVIDIA",
        ),
        pytest.param("a:1:2 [0] NCCL INFO Using network IB\n", Network(Transport.INFINIBAND, "IB"), id="no devices"),
        pytest.param("a:1:2 [0] NCCL INFO Initialized NET plugin IB\n", None, id="not taken yet"),
        pytest.param("Using network IB\n", None, id="words of a program"),
        pytest.param(f"a:1:2 [0] NCCL INFO Using network {'x' * 80}\n", None, id="a name of any length"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_network_of_nccl(text: str, network: Network | None) -> None:
    assert find_network(text) == network


def test_lines_of_level_info_are_taken_out() -> None:
    lines, warning = NcclLines(), b"a:1:2 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed\n"
    assert lines.strip(b"epoch 1:  3%" + NCCL_2_28_IB.encode()[:150]) != b""
    rest = lines.strip(b"a:1:2 [0] NCCL INFO Using network IB\n" + warning + b"step 1\n")
    assert rest == warning + b"step 1\n"
    assert lines.network is not None
    assert lines.strip(NCCL_2_21_SOCKET.encode()) == b""
    assert lines.network.name == "IB", "the first communicator counts"


@pytest.mark.parametrize(
    ("environment", "workers", "asked"),
    [
        ({"NCCL_DEBUG": "WARN"}, 2, True),
        ({"NCCL_DEBUG": "WARN"}, 1, False),
        ({"NCCL_DEBUG": "INFO"}, 2, False),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}, 2, False),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/logs/nccl"}, 2, False),
    ],
)
def test_rank_0_reports_if_the_user_chose_nothing(environment: dict[str, str], workers: int, *, asked: bool) -> None:
    defaults = rank_defaults(["python", "train.py"], environment, 8, starts_ranks=False)
    assert network_variables(environment, defaults, workers) == (VARIABLES if asked else {})


PROGRAM = """
record(f"level{R}", f"{os.environ['NCCL_DEBUG']} {os.environ.get('NCCL_DEBUG_SUBSYS')}")
print("before", file=sys.stderr, flush=True)
if R == 0:
    with open(os.environ["NCCL_DEBUG_FILE"], "w", buffering=1) as log:
        log.write("a:1:2 [0] NCCL INFO NET/IB : No device found.\\n")
        log.write("a:1:2 [0] NCCL INFO Using network Socket\\n")
        log.write("a:1:2 [0] NCCL WARN something else\\n")
"""


def test_agent_logs_the_network_in_one_line(program: Path, tmp_path: Path) -> None:
    variables = {"NCCL_DEBUG": "WARN", "TRAINYARD_REPLICAS": "2", "TRAINYARD_REPLICA_INDEX": "0"}
    with running_agent(program, tmp_path, PROGRAM, **variables) as run:
        code, errors = run.wait()
    assert code == 0
    assert "NCCL uses transport=Sockets name=Socket" in errors
    assert ("NCCL INFO" in errors, "NCCL WARN something else" in errors) == (False, True)
    assert (run.file("level0"), run.file("level1")) == ("INFO INIT,NET", "WARN None")
