"""Keys and certificates of one cluster, made by openssl at each `up`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dev.localcluster.addresses import (
    DNS_DOMAIN,
    GATEWAY,
    KUBERNETES_SERVICE,
    node_address,
    node_name,
)
from dev.localcluster.command import run

if TYPE_CHECKING:
    from pathlib import Path

DAYS: Final = "3650"
# The distribution's own configuration would make every certificate an authority.
CONFIGURATION: Final = """\
[req]
distinguished_name = subject
prompt = no
[subject]
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
[leaf]
basicConstraints = critical,CA:FALSE
extendedKeyUsage = serverAuth,clientAuth
"""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is in a certificate, and the name of its files."""

    name: str
    subject: str
    alternative_names: tuple[str, ...] = ()
    authority: str = "ca"


API_SERVER_NAMES: Final = (
    "DNS:localhost",
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    f"DNS:kubernetes.default.svc.{DNS_DOMAIN}",
    "IP:127.0.0.1",
    f"IP:{KUBERNETES_SERVICE}",
    f"IP:{GATEWAY}",
)
FRONT_PROXY: Final = "front-proxy"
METRICS_SERVICES: Final = ("metrics-server", "prometheus-adapter")
CONTROL_PLANE: Final = (
    Certificate("apiserver", "/CN=kube-apiserver", API_SERVER_NAMES),
    Certificate("admin", "/O=system:masters/CN=admin"),
    Certificate("controller-manager", "/CN=system:kube-controller-manager"),
    Certificate("scheduler", "/CN=system:kube-scheduler"),
    Certificate("proxy", "/CN=system:kube-proxy"),
    Certificate("dns", "/CN=system:coredns"),
    Certificate("metrics", "/CN=metrics", tuple(f"DNS:{name}.kube-system.svc" for name in METRICS_SERVICES)),
    # Separate authorities. A client of the front proxy may impersonate others. A certificate of the cluster, which each node has, must not open etcd.
    Certificate("front-proxy", f"/CN={FRONT_PROXY}", authority="front-proxy-ca"),
    Certificate("etcd", "/CN=etcd", ("IP:127.0.0.1",), authority="etcd-ca"),
)


def node_certificate(number: int) -> Certificate:
    """The kubelet's, for calling the API server and for being called by it."""
    name = node_name(number)
    return Certificate(name, f"/O=system:nodes/CN=system:node:{name}", (f"DNS:{name}", f"IP:{node_address(number)}"))


def create(folder: Path, nodes: int) -> None:
    """Makes all the files that the cluster needs, each name with `.key` and `.crt`."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    configuration = folder / "openssl.cnf"
    configuration.write_text(CONFIGURATION)
    for authority in ("ca", "front-proxy-ca", "etcd-ca"):
        _sign(folder, Certificate(authority, f"/CN=trainyard-{authority}"), "authority")
    for certificate in (*CONTROL_PLANE, *(node_certificate(number) for number in range(1, nodes + 1))):
        _sign(folder, certificate, "leaf")
    key = folder / "service-accounts.key"
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    run("openssl", "genpkey", *curve, "-out", key, doing="making a key")
    run("openssl", "pkey", "-in", key, "-pubout", "-out", key.with_suffix(".pub"), doing="making a key")


def _sign(folder: Path, certificate: Certificate, kind: str) -> None:
    authority = folder / certificate.authority
    issuer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key") if kind == "leaf" else ()
    names = certificate.alternative_names
    run(
        *("openssl", "req", "-x509", "-config", folder / "openssl.cnf", "-extensions", kind, "-days", DAYS, "-nodes"),
        *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *issuer, "-subj", certificate.subject),
        *(("-addext", f"subjectAltName={','.join(names)}") if names else ()),
        *("-keyout", folder / f"{certificate.name}.key", "-out", folder / f"{certificate.name}.crt"),
        doing=f"making the certificate of {certificate.name}",
    )
