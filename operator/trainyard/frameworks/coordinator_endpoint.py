"""Give a worker's agent the coordinator's address, its certificate authority, and a token that proves which pod it
is. Pure.
"""

from dataclasses import dataclass

from trainyard.api.constants import AUDIENCE
from trainyard.frameworks.worker_spec import Json

MOUNT_PATH = "/var/run/secrets/trainyard"
"""The mount point of the token in a worker."""
VOLUME = "trainyard-token"
TOKEN_SECONDS = 3600
"""The lifetime of a token; the kubelet renews it before it expires."""


@dataclass(frozen=True, slots=True)
class CoordinatorEndpoint:
    """The address of the coordinator, as workers see it."""

    url: str
    authority: str = ""
    """The authority of its certificate, in PEM. Empty: one of the authorities in the worker's image."""


def with_coordinator(spec: Json, endpoint: CoordinatorEndpoint, *, waits: bool) -> Json:
    """Return the pod spec in which the main container has the coordinator's address and a token for it.

    Variables and volumes of the user with these names stay as they are. `waits`: its agent waits until all workers are
    ready, because the worker joins a running group, or because of the framework.
    """
    main: Json = spec["containers"][0]
    variables = {"TRAINYARD_COORDINATOR": endpoint.url, "TRAINYARD_TOKEN_FILE": f"{MOUNT_PATH}/token"}
    if waits:
        variables["TRAINYARD_RENDEZVOUS"] = "wait"
    if endpoint.authority:
        variables["TRAINYARD_COORDINATOR_CA"] = endpoint.authority
    own: list[Json] = main.get("env") or []
    volumes: list[Json] = spec.get("volumes") or []
    mounts: list[Json] = main.get("volumeMounts") or []
    if any(variable["name"] in variables for variable in own) or any(v["name"] == VOLUME for v in volumes):
        return spec
    connected = {
        **main,
        "env": [*({"name": name, "value": value} for name, value in variables.items()), *own],
        "volumeMounts": [*mounts, {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True}],
    }
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    volume: Json = {"name": VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}
    return {**spec, "containers": [connected, *spec["containers"][1:]], "volumes": [*volumes, volume]}
