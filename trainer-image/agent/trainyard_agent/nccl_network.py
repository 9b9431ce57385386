"""Find out which network NCCL took, from the lines of its level INFO. Pure.

NCCL offers this as text alone. Rank 0 of several workers prints these lines to its standard error. The agent reads them and passes none of
them on, since the user wants warnings. The result is reported and warned of, and decides nothing else.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

DEBUG_VARIABLE, SUBSYSTEMS_VARIABLE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"
VARIABLES = {DEBUG_VARIABLE: "INFO", SUBSYSTEMS_VARIABLE: "INIT,NET"}
"""What rank 0 needs to print these lines. Warnings are printed at each level."""
INFO_LINE = re.compile(rb"[^\s:]{1,64}:\d{1,10}:\d{1,10} \[\d{1,4}\] NCCL INFO (?:(?!NCCL INFO )[^\n]){0,8192}\n")
"""Host, process, thread and device come first. NCCL writes each line at once. A longer name of a host loses its end."""
TAKEN = re.compile(
    r"NCCL INFO (?:Using network|Assigned NET plugin) ([A-Za-z0-9][\w .+-]{0,62}?)(?: to comm)?$", re.MULTILINE
)
"""The second is of NCCL 2.26 and newer, which prints both."""
DEVICES = re.compile(r"NCCL INFO NET/IB : Using (.{1,1000}?)(?: \[RO\])? ?; OOB ", re.MULTILINE)
KEPT_CHARACTERS = 64 * 1024
"""Of the lines before the network is known."""


class Transport(Enum):
    """The kind of a network."""

    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"
    SOCKETS = "Sockets"
    PLUGIN = "Plugin"


class Network(NamedTuple):
    """The network that NCCL took between nodes."""

    transport: Transport
    name: str
    """NCCL's name: IB, Socket, or that of a plugin."""
    devices: str = ""
    """As NCCL lists them; empty where it does not."""


def find_network(text: str) -> Network | None:
    """Return the network of the first communicator in these lines; None where none is named."""
    taken = TAKEN.search(text)
    if not taken:
        return None
    name = taken[1]
    if name == "Socket":
        return Network(Transport.SOCKETS, name)
    # NVIDIA's plugin IBext lists its devices as NCCL itself does.
    listed = DEVICES.search(text) if name.startswith("IB") else None
    if listed:
        return Network(Transport.ROCE if "/RoCE" in listed[1] else Transport.INFINIBAND, name, listed[1])
    return Network(Transport.INFINIBAND if name == "IB" else Transport.PLUGIN, name)


class NcclLines:
    """Takes NCCL's lines of the level INFO out of the standard error of a rank."""

    def __init__(self) -> None:
        self._text = ""
        self.network: Network | None = None
        """None until it is known."""

    def strip(self, data: bytes) -> bytes:
        """Return what else a rank has printed. A line of which a part was read is not recognized, and passed on."""
        if b" NCCL INFO " not in data:
            return data
        if self.network is None:
            lines = b"".join(INFO_LINE.findall(data)).decode(errors="replace")
            self._text = (self._text + lines)[-KEPT_CHARACTERS:]
            self.network = find_network(self._text)
            if self.network:
                self._text = ""
        return INFO_LINE.sub(b"", data)
