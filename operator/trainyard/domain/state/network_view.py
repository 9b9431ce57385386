"""What decisions use of the network profile of a job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The network profile that new workers get."""

    profile: str = ""
    """Its name; empty where nothing is set."""
    stamp: str = ""
    """What a pod has in its annotation that was created from the same data."""
    sockets: bool = False
    """Whether NCCL uses TCP with it."""


NO_NETWORK = NetworkView()
"""Nothing is set."""
