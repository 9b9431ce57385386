"""How a worker's agent reaches the operator: where it is, by what it is known, and the token by which the pod proves who it is."""

from dataclasses import dataclass

from trainyard.api.constants import AUDIENCE
from trainyard.frameworks.worker_spec import Json

FOLDER = "/var/run/secrets/trainyard"
"""Where the token lies in a worker."""
VOLUME = "trainyard-token"
TOKEN_SECONDS = 3600
"""How long a token lasts; the kubelet renews it before that."""


@dataclass(frozen=True, slots=True)
class Contact:
    """The coordinator, as workers see it."""

    url: str
    authority: str = ""
    """What its certificate is checked by, in PEM. Empty: the image's own authorities."""


def introduce(spec: Json, contact: Contact, *, joins: bool) -> None:
    """Tell the main container of it. Changes the pod's `spec`. What the user has under these names stays as it is.

    `joins`: the worker joins others that are there already, and waits until all are ready.
    """
    main: Json = spec["containers"][0]
    variables = {"TRAINYARD_COORDINATOR": contact.url, "TRAINYARD_TOKEN_FILE": f"{FOLDER}/token"}
    if joins:
        variables["TRAINYARD_RENDEZVOUS"] = "wait"
    if contact.authority:
        variables["TRAINYARD_COORDINATOR_CA"] = contact.authority
    own: list[Json] = main.get("env") or []
    volumes: list[Json] = spec.get("volumes") or []
    mounts: list[Json] = main.get("volumeMounts") or []
    if any(each["name"] in variables for each in own) or any(each["name"] == VOLUME for each in volumes):
        return
    main["env"] = [*({"name": name, "value": value} for name, value in variables.items()), *own]
    main["volumeMounts"] = [*mounts, {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}]
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"}
    spec["volumes"] = [*volumes, {"name": VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]
