"""`spec.network`: how workers reach each other, and what the network of their nodes needs of their pods."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from trainyard.api.base import Model, rule

DNS_NAMES = "(has(self.network) && has(self.network.dnsNames) ? self.network.dnsNames : '')"
NETWORK_PROFILE = "(has(self.network) && has(self.network.profile) ? self.network.profile : '')"
AUTO_NETWORK = "auto"
PROFILE_NAME = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""Names of network profiles. The platform team adds its own, so that the CRD cannot list them."""


class DnsNames(StrEnum):
    """The workers that have a DNS name."""

    MASTER = "Master"
    ALL = "All"


class Network(Model):
    """How workers reach each other."""

    profile: str | None = Field(default=None, max_length=63, pattern=PROFILE_NAME)
    """What the network of the nodes needs of a worker's pod: devices, capabilities, networks, variables and sidecars. Known are tcp, rdma,
    infiniband, roce, efa and coreweave-infiniband. On Google Cloud: gpudirect-tcpx, gpudirect-tcpxo and gpudirect-rdma. The platform team
    may add others. auto: the one that a resource or the node selector of the template proves. A value of the template always wins. Not set:
    nothing is added."""
    dns_names: DnsNames | None = None
    """The workers that have a DNS name (JOB-worker-INDEX.JOB). Master: only worker 0, which is enough for torch.distributed. All: every
    worker; the cost of its endpoints grows with the square of the group. Not set: All for none, mpi, tensorflow,
    paddle, and jax on TPUs; else Master."""


def network_rules() -> list[dict[str, Any]]:
    """Return the rules of the CRD for `spec.network`."""
    return [
        rule(
            f"!(self.framework in ['tensorflow', 'paddle']) || {DNS_NAMES} != 'Master'",
            "tensorflow and paddle reach all members by name; leave network.dnsNames out",
            fieldPath=".network.dnsNames",
        ),
        rule(
            f"{DNS_NAMES} == {DNS_NAMES.replace('self', 'oldSelf')}",
            "network.dnsNames cannot be changed; delete the TrainingJob and create it again",
            fieldPath=".network",
            reason="FieldValueForbidden",
        ),
        rule(
            f"{NETWORK_PROFILE} == {NETWORK_PROFILE.replace('self', 'oldSelf')}"
            " || self.lifecycle.suspend || oldSelf.lifecycle.suspend",
            "network.profile can be changed only while the job is suspended; set lifecycle.suspend to true first",
            fieldPath=".network",
            reason="FieldValueForbidden",
        ),
        rule(
            f"!{NETWORK_PROFILE}.startsWith('gpudirect-') || !self.template.spec.?hostNetwork.orValue(false)",
            "the gpudirect profiles attach networks to the pod, which hostNetwork excludes; remove one of the two",
            fieldPath=".network.profile",
        ),
    ]
