"""Give a worker's pod what its network profile sets. A value of the template stays, and the result says so. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.api.roles import is_worker
from trainyard.domain.state.accelerators import accelerators
from trainyard.domain.state.rdma import requested_of
from trainyard.scheduling.network_profile import INTERFACE_VARIABLES, Json, NamedProfile, NetworkProfile

MULTUS = "k8s.v1.cni.cncf.io/networks"
"""The annotation by which Multus attaches networks to a pod."""
HUGE_PAGES = "hugepages-"
NEEDED_BY_HUGE_PAGES = frozenset({"cpu", "memory"})
"""Kubernetes refuses huge pages in a container that requests neither."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What became of the values of a profile, in words."""

    done: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Other values of the template, which stay."""
    left_out: tuple[str, ...] = ()
    """What is not set, and why."""

    def __add__(self, other: "Facts") -> "Facts":
        return Facts(self.done + other.done, self.kept + other.kept, self.left_out + other.left_out)


def all_facts(parts: Iterable[Facts]) -> Facts:
    """Return the facts of several members, each once."""
    whole = sum(parts, Facts())
    done, kept, left_out = ((*dict.fromkeys(each),) for each in (whole.done, whole.kept, whole.left_out))
    return Facts(done, kept, left_out)


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """A template with what a profile sets."""

    template: Json
    sidecars: Sequence[Json] = ()
    """Containers that run beside the template's own. They are no part of it: they get none of its variables."""
    stamp: str = ""
    """The stamp of the profile; empty where none was applied."""
    facts: Facts = Facts()


def covers(network: NamedProfile, index: int, template: Json) -> bool:
    """Return whether a member gets the profile: all workers do, and members of roles with accelerators or devices of the network."""
    main: Mapping[str, Any] = template["spec"]["containers"][0]
    devices = (*network.profile.devices, *network.profile.resources)
    return is_worker(index) or accelerators(main) > 0 or bool(requested_of(main, devices))


def with_network(template: Json, network: NamedProfile) -> WorkerNetwork:
    """Return the template with what the profile sets, and its sidecars. The template itself is not changed."""
    profile, pod = network.profile, template["spec"]
    main: Json = pod["containers"][0]
    metadata, of_pod = _annotations(profile, template)
    changed, facts = main, of_pod
    for step in (_resources, _capabilities, _variables, _mounts):
        fields, found = step(profile, changed, pod)
        changed, facts = {**changed, **fields}, facts + found
    volumes, of_volumes = _volumes(profile, pod)
    sidecars, of_sidecars = _sidecars(profile, pod)
    spec = {**pod, **volumes, "containers": [changed, *pod["containers"][1:]]}
    facts = facts + of_volumes + of_sidecars + _missing_device(profile, changed)
    return WorkerNetwork({**template, **metadata, "spec": spec}, sidecars, network.stamp, facts)


def with_sidecars(spec: Json, sidecars: Sequence[Json]) -> Json:
    """Return the pod spec with these containers before all others: they start first, and end after the workers."""
    if not sidecars:
        return spec
    return {**spec, "initContainers": [*sidecars, *(spec.get("initContainers") or [])]}


def privileges(profile: NetworkProfile) -> list[str]:
    """Return what the profile sets that pod security standards refuse."""
    added = [f"the capability {name}" for name in profile.capabilities]
    added += [f"the node's {v['hostPath'].get('path')}" for v in profile.volumes if v.get("hostPath")]
    security = ((each["name"], each.get("securityContext") or {}) for each in profile.sidecars)
    for name, context in security:
        more = (context.get("capabilities") or {}).get("add") or []
        added += [f"{', '.join(more)} for {name}"] if more else []
        added += [f"privileged for {name}"] if context.get("privileged") else []
    return added


def _resources(profile: NetworkProfile, main: Json, pod: Json) -> tuple[Json, Facts]:
    """Return the limits. An amount of the template is the usual way to request another number of devices."""
    resources: Json = main.get("resources") or {}
    limits: Json = resources.get("limits") or {}
    asked = {*limits, *(resources.get("requests") or {})}
    of_pod: Json = pod.get("resources") or {}
    sized = NEEDED_BY_HUGE_PAGES & {*asked, *(of_pod.get("limits") or {}), *(of_pod.get("requests") or {})}
    new, left = {}, []
    for name, amount in profile.resources.items():
        if name in asked:
            continue
        if name.startswith(HUGE_PAGES) and not sized:
            left.append(
                f"{name} (the main container requests neither memory nor cpu, which Kubernetes demands beside it)"
            )
            continue
        new[name] = str(amount)
    facts = Facts(tuple(f"{name}: {amount}" for name, amount in new.items()), left_out=tuple(left))
    return ({"resources": {**resources, "limits": {**limits, **new}}} if new else {}), facts


def _capabilities(profile: NetworkProfile, main: Json, _pod: Json) -> tuple[Json, Facts]:
    """Return the capabilities. A privileged container has all, and one that drops a capability by name does not want it."""
    context: Json = main.get("securityContext") or {}
    given: Json = context.get("capabilities") or {}
    has, dropped = ({name.removeprefix("CAP_") for name in given.get(kind) or []} for kind in ("add", "drop"))
    if context.get("privileged") or "ALL" in has:
        return {}, Facts()
    new = [name for name in profile.capabilities if name not in has and name not in dropped]
    kept = tuple(f"drop {name}" for name in profile.capabilities if name in dropped and name not in has)
    if not new:
        return {}, Facts(kept=kept)
    capabilities = {**given, "add": [*(given.get("add") or []), *new]}
    facts = Facts(tuple(f"capability {name}" for name in new), kept)
    return {"securityContext": {**context, "capabilities": capabilities}}, facts


def _variables(profile: NetworkProfile, main: Json, pod: Json) -> tuple[Json, Facts]:
    """Return the variables. `envFrom` may set them too, and `env` would replace its values, which are unknown here."""
    wanted = {**profile.env}
    if profile.interface and not pod.get("hostNetwork"):
        wanted = {**dict.fromkeys(INTERFACE_VARIABLES, profile.interface), **wanted}
    own: list[Json] = main.get("env") or []
    given = {variable["name"]: variable for variable in own}
    kept = tuple(
        f"{name} (valueFrom)" if "valueFrom" in given[name] else f"{name}={given[name].get('value', '')}"
        for name, value in wanted.items()
        if name in given and given[name].get("value", "") != value
    )
    new = {name: value for name, value in wanted.items() if name not in given}
    if new and main.get("envFrom"):
        left = f"{', '.join(new)} (envFrom of the main container may set them: add what it lacks to env)"
        return {}, Facts(kept=kept, left_out=(left,))
    if not new:
        return {}, Facts(kept=kept)
    added = [{"name": name, "value": value} for name, value in new.items()]
    # Before the user's, whose values can refer to them.
    return {"env": [*added, *own]}, Facts(tuple(f"{name}={value}" for name, value in new.items()), kept)


def _mounts(profile: NetworkProfile, main: Json, _pod: Json) -> tuple[Json, Facts]:
    own: list[Json] = main.get("volumeMounts") or []
    taken = {_path(mount): mount["name"] for mount in own}
    new = [mount for mount in profile.volume_mounts if _path(mount) not in taken]
    others = (m for m in profile.volume_mounts if _path(m) in taken and taken[_path(m)] != m.get("name"))
    kept = tuple(f"the mount at {mount['mountPath']}" for mount in others)
    done = tuple(f"mount {mount['mountPath']}" for mount in new)
    return ({"volumeMounts": [*own, *new]} if new else {}), Facts(done, kept)


def _path(mount: Json) -> str:
    return str(mount["mountPath"]).rstrip("/")


def _volumes(profile: NetworkProfile, pod: Json) -> tuple[Json, Facts]:
    own: list[Json] = pod.get("volumes") or []
    given = {volume["name"]: volume for volume in own}
    new = [volume for volume in profile.volumes if volume["name"] not in given]
    others = (v["name"] for v in profile.volumes if v["name"] in given and given[v["name"]] != v)
    return ({"volumes": [*own, *new]} if new else {}), Facts(kept=tuple(f"the volume {name}" for name in others))


def _annotations(profile: NetworkProfile, template: Json) -> tuple[Json, Facts]:
    """Return the metadata. On the node's network a pod gets no other networks."""
    metadata: Json = template.get("metadata") or {}
    given: Mapping[str, str] = metadata.get("annotations") or {}
    wanted = dict(profile.annotations)
    left: tuple[str, ...] = ()
    if profile.networks and template["spec"].get("hostNetwork"):
        left = (f"the networks {', '.join(profile.networks)} (the pods use their nodes' network)",)
    elif profile.networks:
        wanted[MULTUS] = ",".join(profile.networks)
    new = {name: value for name, value in wanted.items() if name not in given}
    kept = tuple(f"annotation {name}" for name, value in wanted.items() if name in given and given[name] != value)
    facts = Facts(tuple(f"annotation {name}" for name in new), kept, left)
    return ({"metadata": {**metadata, "annotations": {**new, **given}}} if new else {}), facts


def _sidecars(profile: NetworkProfile, pod: Json) -> tuple[list[Json], Facts]:
    """Return the sidecars. As init containers that always restart, they start first and keep no pod from completing."""
    named = {each["name"] for each in (*(pod.get("initContainers") or []), *pod["containers"])}
    new = [{**each, "restartPolicy": "Always"} for each in profile.sidecars if each["name"] not in named]
    kept = tuple(f"the container {each['name']}" for each in profile.sidecars if each["name"] in named)
    return new, Facts(tuple(f"sidecar {each['name']}" for each in new), kept)


def _missing_device(profile: NetworkProfile, main: Json) -> Facts:
    """Return what the main container lacks where the administrator chooses the name of the device."""
    context: Json = main.get("securityContext") or {}
    claims = (main.get("resources") or {}).get("claims")
    if not profile.devices or context.get("privileged") or claims or requested_of(main, profile.devices):
        return Facts()
    return Facts(left_out=("the device (add its resource, often rdma/NAME, to limits of the main container)",))
