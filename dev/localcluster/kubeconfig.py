"""Kubeconfig contents, with the certificates inside, so that the file can be copied. (JSON is YAML.)"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from dev.localcluster.addresses import API_URL

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT = "trainyard-local"


def client_configuration(pki: Path, certificate: str) -> dict[str, Any]:
    """The kubeconfig of the user with this certificate."""

    def encoded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": CONTEXT, "cluster": {"server": API_URL, "certificate-authority-data": encoded("ca.crt")}}
        ],
        "users": [
            {
                "name": certificate,
                "user": {
                    "client-certificate-data": encoded(f"{certificate}.crt"),
                    "client-key-data": encoded(f"{certificate}.key"),
                },
            }
        ],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": certificate}}],
        "current-context": CONTEXT,
    }


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, from its first moment."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
