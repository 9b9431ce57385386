"""A network profile: what a network needs of a worker's pod. It is data: `known_networks` has some, the chart's values more. Pure."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from trainyard.api.base import Model
from trainyard.api.network import AUTO_NETWORK, PROFILE_NAME

Json = dict[str, Any]

DIGEST_CHARACTERS = 12
NOT_OF_PODS = frozenset({"base", "source", "proof", "advice", "devices", "sockets"})
"""Fields that change no pod."""
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Set to the interface on which ranks meet."""
RESERVED = (
    "TRAINYARD_",
    "PET_",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
)
"""Names of variables, or their beginnings, that the operator sets for each rank."""


def _check_variable(name: str) -> str:
    if any(name == each or (each.endswith("_") and name.startswith(each)) for each in RESERVED):
        raise ValueError(f"the operator sets {name} for each rank: remove it")
    return name


def _check_name(name: str) -> str:
    if name == AUTO_NETWORK:
        raise ValueError("auto is no profile of its own: choose another name")
    return name


def _needs(what: str, key: str) -> Callable[[Json], Json]:
    """Return the check of an entry of Kubernetes' own. The API server knows all its other fields."""

    def check(entry: Json) -> Json:
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise ValueError(f"a {what} needs {key}")
        return entry

    return check


def _schema(key: str) -> Json:
    return {"required": [key], "properties": {key: {"type": "string", "minLength": 1}}}


Volume = Annotated[Json, AfterValidator(_needs("volume", "name")), Field(json_schema_extra=_schema("name"))]
Mount = Annotated[Json, AfterValidator(_needs("mount", "mountPath")), Field(json_schema_extra=_schema("mountPath"))]
Sidecar = Annotated[Json, AfterValidator(_needs("sidecar", "name")), Field(json_schema_extra=_schema("name"))]
ProfileName = Annotated[str, StringConstraints(pattern=PROFILE_NAME), AfterValidator(_check_name)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_check_variable)]
QualifiedName = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
]
Quantity = (
    Annotated[int, Field(ge=0)]
    | Annotated[str, StringConstraints(pattern=r"^[0-9]+([.][0-9]+)?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")]
)
Capability = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z_]*$")]
Only = Field(json_schema_extra={"additionalProperties": False})
"""Only keys that match the pattern of keys are allowed."""


class Strict(Model):
    """A part of a profile. An unknown field is refused: what it was meant to set would be missing in silence."""

    model_config = ConfigDict(extra="forbid")


class Proof(Strict):
    """What of a job's template proves that its workers have this network. The operator reads no nodes."""

    resources: list[str] = Field(default=[])
    """Extended resources of which the main container requests one. `*` stands for any characters."""
    node_labels: Annotated[dict[QualifiedName, list[str]], Only] = Field(default={})
    """Labels of which the node selector or the required node affinity has one, each with the values that prove it."""
    gpus: int = Field(default=0, ge=0)
    """The GPUs that the main container requests at least."""


class NetworkProfile(Strict):
    """What a network needs of a worker's pod, and nothing else."""

    base: ProfileName | None = None
    """The known profile that this one extends. Not set: the known one of the same name, if there is one."""
    source: str = ""
    """Where the values come from."""
    proof: Proof = Proof()
    """What proves this network, for `profile: auto`."""
    devices: list[str] = Field(default=[])
    """Extended resources of which a worker needs one, where the administrator of the cluster chooses the name."""
    resources: Annotated[dict[QualifiedName, Quantity], Only] = Field(default={})
    """Limits of the main container."""
    capabilities: list[Capability] = Field(default=[])
    """Linux capabilities of the main container."""
    networks: list[str] = Field(default=[])
    """NetworkProfiles of Multus, in the order of their interfaces. A network may be there several times."""
    interface: str = ""
    """The interface of the pod on which ranks meet (NCCL and gloo)."""
    env: Annotated[dict[VariableName, str], Only] = Field(default={})
    """Variables of the main container."""
    annotations: Annotated[dict[QualifiedName, str], Only] = Field(default={})
    """Annotations of the pod."""
    volumes: list[Volume] = Field(default=[])
    """Volumes of the pod."""
    volume_mounts: list[Mount] = Field(default=[])
    """Mounts of the main container."""
    sidecars: list[Sidecar] = Field(default=[])
    """Containers that run beside the main one, and end with it. Each needs an image."""
    host_network: bool = True
    """Whether it also works in pods on their nodes' network."""
    sockets: bool = False
    """Whether NCCL uses TCP sockets, as it does with no other network."""
    advice: str = ""
    """What the user does beside it."""


@dataclass(frozen=True, slots=True)
class NamedProfile:
    """A profile by its name."""

    name: str
    profile: NetworkProfile
    stamp: str
    """Name and digest: pods with different stamps were created from different data."""
    of_chart: bool = False
    """Whether the platform team has set it."""


NetworkProfiles = Mapping[str, NamedProfile]


def named(name: str, profile: NetworkProfile, *, of_chart: bool = False) -> NamedProfile:
    """Return the profile with its name and its stamp."""
    fields = json.dumps(profile.model_dump(mode="json", exclude=set(NOT_OF_PODS)), sort_keys=True)
    return NamedProfile(name, profile, f"{name}@{sha256(fields.encode()).hexdigest()[:DIGEST_CHARACTERS]}", of_chart)


def with_own(known: NetworkProfiles, own: Mapping[str, NetworkProfile]) -> NetworkProfiles:
    """Return the known networks with those of the platform team, which come first and replace known ones of the same name.

    Raises ValueError where `base` is not known.
    """
    made = {}
    for name, profile in own.items():
        base = profile.base or (name if name in known else None)
        if base is not None and base not in known:
            raise ValueError(f"{name}.base: {base} is not a known profile: {', '.join(known)}")
        made[name] = named(name, extended(known[base].profile, profile) if base else profile, of_chart=True)
    return {**made, **{name: each for name, each in known.items() if name not in made}}


def extended(base: NetworkProfile, own: NetworkProfile) -> NetworkProfile:
    """Return the base with what the other profile sets: entries replace those of the same name, other values the whole."""
    changes: Json = {name: getattr(own, name) for name in own.model_fields_set}
    for name in ("resources", "env", "annotations"):
        changes[name] = {**getattr(base, name), **getattr(own, name)}
    changes["capabilities"] = [*dict.fromkeys((*base.capabilities, *own.capabilities))]
    for name, key in (("volumes", "name"), ("volume_mounts", "mountPath"), ("sidecars", "name")):
        changes[name] = _merged(getattr(base, name), getattr(own, name), key)
    return base.evolve(**changes)


def _merged(base: Iterable[Json], own: Iterable[Json], key: str) -> list[Json]:
    """Return the entries of both. One with the key of another sets its fields alone."""
    entries = {each[key]: each for each in base}
    return [*(entries | {each[key]: {**entries.get(each[key], {}), **each} for each in own}).values()]
