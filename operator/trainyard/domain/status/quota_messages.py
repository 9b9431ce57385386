"""Put a quota's rejection into the words of the job's template. No decision depends on the text. Pure."""

import re
from collections.abc import Mapping, Sequence

from trainyard.api.constants import AGENT

MISSING = re.compile(r"failed quota: (?P<quota>[^:]+): must specify (?P<lacks>.+)$", re.DOTALL)
"""What the API server says of a pod that lacks a request or a limit that a quota counts: `cpu for: main,proxy; memory for: main`."""


def in_words_of_template(message: str) -> str:
    """Return which container of the template lacks what, before the server's own message; that alone for any other rejection."""
    found = MISSING.search(message)
    lacks = _by_container(found["lacks"]) if found else {}
    if found is None or not lacks:
        return message
    parts = [f"{' and '.join(names)} of container {container}" for container, names in lacks.items()]
    return f"ResourceQuota {found['quota']} needs {', '.join(parts)} of spec.template; set them there: {message}"


def _by_container(lacks: str) -> Mapping[str, Sequence[str]]:
    """Return what each container of the template lacks. The agent's container requests what the main one does."""
    found: dict[str, list[str]] = {}
    for part in lacks.split(";"):
        resource, _, containers = part.strip().partition(" for: ")
        for container in containers.split(","):
            if container and container != AGENT:
                found.setdefault(container.strip(), []).append(resource)
    return found
