"""What a build must know of the host: its CA bundle, package index, apt proxies and apt mirrors.

All of it reaches a build as secrets, which no layer keeps. Proxies in the environment are not here: buildah passes
those on by itself. Everything is read from the host; no server's name stands in this project.
"""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dev.localcluster.command import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
CA_BUNDLE_IN_BUILD = "/run/secrets/ca-bundle"

# pip's option, and the variables that stand for it, pip's own before uv's.
INDEX_VARIABLES = {
    "index-url": ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL"),
    "trusted-host": ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST"),
}


def ca_bundle(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file with the CA certificates that this host trusts."""
    candidates = [Path(path) for path in (environ.get("SSL_CERT_FILE"), *CA_BUNDLES) if path]
    return next((path for path in candidates if path.is_file()), None)


def pip_conf_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where pip looks for its settings, the strongest last."""
    home = Path(environ.get("HOME", "/root"))
    user = Path(environ.get("XDG_CONFIG_HOME", home / ".config"))
    named = environ.get("PIP_CONFIG_FILE")
    return [
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        user / "pip" / "pip.conf",
        *([Path(named)] if named else []),
    ]


def pip_conf(environ: Mapping[str, str], files: Iterable[Path], *, with_ca_bundle: bool) -> str:
    """A pip.conf with the host's choice of index and the CA bundle, empty where there is neither."""
    on_host = configparser.RawConfigParser(strict=False)
    on_host.read(files)
    chosen = {"cert": CA_BUNDLE_IN_BUILD} if with_ca_bundle else {}
    for option, variables in INDEX_VARIABLES.items():
        fallback = on_host.get("global", option, fallback="")
        if value := next((environ[name] for name in variables if environ.get(name)), fallback):
            chosen[option] = value
    return "".join(["[global]\n", *(f"{option} = {value}\n" for option, value in chosen.items())]) if chosen else ""


def apt_conf(dump: str, *, with_ca_bundle: bool) -> str:
    """Apt's proxies of the host, from `apt-config dump`, and the CA bundle for mirrors that speak https."""
    proxies = re.findall(r'^Acquire::(?:http|https)::Proxy\S* "[^"]+";$', dump, re.MULTILINE)
    bundle = [f'Acquire::https::CAInfo "{CA_BUNDLE_IN_BUILD}";'] if with_ca_bundle else []
    return "".join(f"{line}\n" for line in [*proxies, *bundle])


def debian_sources(index_targets: Sequence[str], suite: str) -> list[str]:
    """The host's Debian mirrors, as sources of `suite`; none where the host is no Debian.

    `index_targets` are lines `uri codename origin` of `apt-get indextargets`. What the host has for its own release
    (bookworm, bookworm-updates, bookworm-security) is what the other one shall have too.
    """
    rows = [line.split() for line in index_targets]
    debian = [(uri, codename) for uri, codename, origin in (row for row in rows if len(row) == 3) if origin == "Debian"]
    pockets = {
        f"deb {uri} {suite}{pocket} main": None
        for uri, codename in debian
        for pocket in re.findall(r"^[a-z]+(|-updates|-security)$", codename)
    }
    return list(pockets)


def host_apt_conf(*, with_ca_bundle: bool) -> str:
    """`apt_conf` of this host."""
    return apt_conf(run("apt-config", "dump", doing="reading apt's settings"), with_ca_bundle=with_ca_bundle)


def host_debian_sources(suite: str) -> list[str]:
    """`debian_sources` of this host."""
    columns = "$(REPO_URI) $(CODENAME) $(ORIGIN)"
    command = ("apt-get", "indextargets", "--format", columns, "Created-By: Packages")
    return debian_sources(run(*command, doing="reading apt's mirrors").splitlines(), suite)
