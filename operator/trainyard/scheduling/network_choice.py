"""Choose the network profile of a job by its name, or for `auto` by what the template proves. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from trainyard.api.network import AUTO_NETWORK
from trainyard.api.spec import TrainingJobSpec
from trainyard.domain.state.accelerators import gpus
from trainyard.domain.state.rdma import requested_of
from trainyard.scheduling.network_profile import NamedProfile, NetworkProfiles, Proof


@dataclass(frozen=True, slots=True)
class Choice:
    """The network of a job's workers."""

    network: NamedProfile | None = None
    """None: nothing is set."""
    proof: str = ""
    """What of the template proved it; empty where the job names it."""
    problem: str = ""
    """Why no worker can be created; empty where workers can."""
    note: str = ""
    """Why `auto` set nothing."""


def choose_network(spec: TrainingJobSpec, networks: NetworkProfiles) -> Choice:
    """Return the network of the workers of a job. `networks`: the profiles that the operator knows, by name."""
    name = spec.network.profile
    if name is None:
        return Choice()
    if name == AUTO_NETWORK:
        return _proved(spec.template["spec"], networks)
    if name not in networks:
        listed = ", ".join(sorted((AUTO_NETWORK, *networks)))
        return Choice(problem=f"the operator knows no network.profile {name}: {_fix(f'name one of {listed}')}")
    found = networks[name]
    if lacking := _without_image(found, spec.template["spec"]):
        return Choice(problem=lacking)
    if spec.template["spec"].get("hostNetwork") and not found.profile.host_network:
        return Choice(problem=f"network.profile {name} does not work with hostNetwork: {_fix('remove one of the two')}")
    return Choice(found)


def _fix(what: str) -> str:
    return (
        f"set lifecycle.suspend to true, {what}, and resume; or have the administrator set networkProfiles of the chart"
    )


def _without_image(network: NamedProfile, pod: Mapping[str, Any]) -> str:
    """Return why a profile cannot be used: a sidecar without an image. Empty where each has one, or the template has the container.

    The image belongs to the release of the plugin on the nodes, which the operator does not know.
    """
    named = {each["name"] for each in (*(pod.get("initContainers") or ()), *pod["containers"])}
    lacking = (each["name"] for each in network.profile.sidecars if not each.get("image") and each["name"] not in named)
    sidecar = next(lacking, "")
    if not sidecar:
        return ""
    return (
        f"network.profile {network.name} needs the image of its sidecar {sidecar}, which fits the plugin on the nodes:"
        f" have the administrator set networkProfiles.{network.name}.sidecars of the chart"
    )


def _proved(pod: Mapping[str, Any], networks: NetworkProfiles) -> Choice:
    """Return the network that the template proves. Where two of the platform team are proved, none is."""
    proved = {each.name: proof for each in networks.values() if (proof := proof_of(each.profile.proof, pod))}
    of_chart = [name for name in proved if networks[name].of_chart]
    if len(of_chart) > 1:
        return Choice(
            note=f"the template proves several profiles, {', '.join(of_chart)}, so that auto sets nothing: name one"
        )
    name = next(iter((*of_chart, *proved)), None)
    if name is None:
        return Choice(note="no resource and no node label of the template proves a network, so that auto sets nothing")
    found = networks[name]
    if lacking := _without_image(found, pod):
        return Choice(note=f"auto sets nothing: {lacking}")
    if pod.get("hostNetwork") and not found.profile.host_network:
        return Choice(note=f"{name} does not work with hostNetwork, so that auto sets nothing")
    return Choice(found, proved[name])


def proof_of(proof: Proof, pod: Mapping[str, Any]) -> str:
    """Return what of this pod proves a network; empty where nothing does."""
    main: Mapping[str, Any] = pod["containers"][0]
    if gpus(main) < proof.gpus:
        return ""
    if found := requested_of(main, proof.resources):
        return f"resource {found[0]}"
    for label, patterns in proof.node_labels.items():
        values = _required_values(label, pod)
        if values and all(any(fnmatchcase(value, each) for each in patterns) for value in values):
            return f"node label {label}={','.join(values)}"
    return ""


def _required_values(label: str, pod: Mapping[str, Any]) -> Sequence[str]:
    """Return the values that this label has on each node that the pod admits; empty where it may have others, or none."""
    selector: Mapping[str, str] = pod.get("nodeSelector") or {}
    if label in selector:
        return [selector[label]]
    affinity: Mapping[str, Any] = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required: Mapping[str, Any] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    found: list[str] = []
    # A node has to match one of the terms, and all expressions of that term.
    for term in required.get("nodeSelectorTerms") or ():
        expressions = term.get("matchExpressions") or ()
        values = next((e["values"] for e in expressions if e["key"] == label and e["operator"] == "In"), None)
        if not values:
            return []
        found += values
    return [*dict.fromkeys(found)]
