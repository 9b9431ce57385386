"""A Kubernetes API without nodes, as plain processes on loopback: etcd, the API server and the controllers that clean
up.

For tests that need the real API server and play scheduler and nodes themselves. No root; some five seconds to start.
All processes die with the thread that has started them, so that no run leaves anything to the next.
"""

import asyncio
import json
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from dev.localcluster import tools

Json = dict[str, Any]

ADMIN: Final = "admin"
OPERATOR: Final = "system:serviceaccount:trainyard-system:trainyard"
"""The chart's own account: what the chart grants to it is granted here."""
GROUPS: Final = {ADMIN: "system:masters", OPERATOR: "system:serviceaccounts,system:serviceaccounts:trainyard-system"}
CONTROLLERS: Final = "garbage-collector-controller,namespace-controller,serviceaccount-controller"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
START_SECONDS: Final = 90.0


class RefusedError(Exception):
    """The API server answered with an error; `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def free_port() -> int:
    """Return a port on loopback that no other process gets by chance.

    It lies below those that the kernel hands out by itself: one of these could be gone again before the server takes
    it.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass(slots=True)
class ControlPlane:
    """The processes, how to reach them, and how to hurt them."""

    folder: Path
    flags: Mapping[str, str] = field(default_factory=dict)
    """More flags of the API server."""
    etcd_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    api_port: int = field(default_factory=free_port)
    _programs: Mapping[str, Path] = field(default_factory=dict, init=False)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def storage(self) -> str:
        """The URL of etcd, which tells its history in JSON too."""
        return f"http://127.0.0.1:{self.etcd_port}"

    def tls(self) -> ssl.SSLContext:
        """Trust in the API server's own certificate."""
        return ssl.create_default_context(cafile=str(self.folder / "certificates/apiserver.crt"))

    def token(self, user: str) -> str:
        """The bearer token of a user."""
        return f"token-of-{user.rpartition(':')[2]}"

    def kubeconfig(self, user: str, server: str | None = None) -> Path:
        """A kubeconfig for a user, for the API server or for somebody who stands before it."""
        cluster: Json = {"server": server or self.server}
        if server is None:
            cluster["certificate-authority"] = str(self.folder / "certificates/apiserver.crt")
        port = cluster["server"].rpartition(":")[2]
        path = self.folder / f"{user.rpartition(':')[2]}-{port}.kubeconfig"
        context = {"name": "only", "context": {"cluster": "only", "user": user}}
        users = [{"name": user, "user": {"token": self.token(user)}}]
        clusters = [{"name": "only", "cluster": cluster}]
        config = {"apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users, "contexts": [context]}
        path.write_text(json.dumps({**config, "current-context": "only"}))
        return path

    def start(self, kinds: Sequence[Json]) -> None:
        """Start everything, with these CRDs installed before the garbage collector asks which kinds there are."""
        self._programs = tools.ensure("etcd", "kube-apiserver", "kube-controller-manager")
        self._prepare()
        self._run_server()
        for kind in kinds:
            self.call("POST", CRDS, kind)
        for kind in kinds:
            self._await(partial(self._established, kind["metadata"]["name"]), "a CRD is not served")
        self._run("kube-controller-manager", self._controller_manager())

    async def restart_api_server(self, how: signal.Signals) -> None:
        """End the API server, politely or not, and start it again. What is stored stays.

        The controllers go with it: without it they lose their election. A garbage collector that lived on would take a
        job that was deleted and created again in the gap for the old one.
        """
        for name, signal_number in (("kube-apiserver", how), ("kube-controller-manager", signal.SIGKILL)):
            process = self._running.pop(name)
            process.send_signal(signal_number)
            while process.poll() is None:  # noqa: ASYNC110 - a process is no event
                await asyncio.sleep(0.02)
        self._run("kube-apiserver", self._api_server())
        await asyncio.to_thread(self._await_ready)
        self._run("kube-controller-manager", self._controller_manager())

    def back_up(self) -> None:
        """Save the stored data as they are now. No request gets an answer meanwhile."""
        self.stop()
        shutil.copytree(self._data, self._copy)
        self._start_again()

    def restore(self) -> None:
        """Bring everything back to how it was at `back_up`: the versions of objects too."""
        self.stop()
        shutil.rmtree(self._data)
        self._copy.rename(self._data)
        self._start_again()

    def stop(self) -> None:
        """End everything, without manners."""
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait(timeout=30)
        self._running.clear()

    def call(
        self, method: str, path: str, body: Json | None = None, content: str = "application/json", user: str = ""
    ) -> Any:
        """Send a request as the administrator, or as another user. Raises RefusedError, or URLError where no server
        answers.
        """
        headers = {"Authorization": f"Bearer {self.token(ADMIN)}", "Content-Type": content}
        if user:
            headers["Impersonate-User"] = user
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data, headers, method=method)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls()) as answer:  # noqa: S310 - a URL of ours
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise RefusedError(error.code, error.read().decode(errors="replace")) from error
        return json.loads(text) if text.startswith(b"{") else text.decode()

    @property
    def _data(self) -> Path:
        return self.folder / "etcd"

    @property
    def _copy(self) -> Path:
        return self.folder / "backup"

    def _run_server(self) -> None:
        client, peer = self.storage, f"http://127.0.0.1:{self.peer_port}"
        etcd = {
            "data-dir": self._data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        self._run("etcd", etcd, "--unsafe-no-fsync")
        self._run("kube-apiserver", self._api_server())
        self._await_ready()

    def _start_again(self) -> None:
        self._run_server()
        self._run("kube-controller-manager", self._controller_manager())

    def _prepare(self) -> None:
        (self.folder / "certificates").mkdir(parents=True)
        lines = [f'{self.token(user)},{user},{user},"{groups}"' for user, groups in GROUPS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        key = self.folder / "service-accounts.key"
        curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        subprocess.run(["openssl", "genpkey", *curve, "-out", key], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", key.with_suffix(".pub")], check=True)

    def _api_server(self) -> dict[str, Any]:
        return {
            "etcd-servers": self.storage,
            # Stored as text, so that a test can read the history from etcd itself, and the whole of it.
            "storage-media-type": "application/json",
            "etcd-compaction-interval": "0",
            "bind-address": "127.0.0.1",
            "secure-port": self.api_port,
            "cert-dir": self.folder / "certificates",
            "endpoint-reconciler-type": "none",
            "token-auth-file": self.folder / "tokens.csv",
            "anonymous-auth": "false",
            "authorization-mode": "RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.folder / "service-accounts.pub",
            "service-account-signing-key-file": self.folder / "service-accounts.key",
            "service-cluster-ip-range": "10.0.0.0/16",
            "enable-priority-and-fairness": "false",
            # Else a polite end waits for a minute until the last watch is over.
            "shutdown-watch-termination-grace-period": "1s",
            **self.flags,
        }

    def _controller_manager(self) -> dict[str, Any]:
        return {
            "kubeconfig": self.kubeconfig(ADMIN),
            "controllers": CONTROLLERS,
            "leader-elect": "false",
            "secure-port": 0,
            "kube-api-qps": 500,
            "kube-api-burst": 1000,
        }

    def _await_ready(self) -> None:
        self._await(lambda: self.call("GET", "/readyz") is not None, "the API server did not become ready")

    def _established(self, name: str) -> bool:
        conditions = self.call("GET", f"{CRDS}/{name}").get("status", {}).get("conditions") or []
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    def _run(self, name: str, flags: Mapping[str, Any], *more: str) -> None:
        words = [str(self._programs[name]), *(f"--{flag}={value}" for flag, value in flags.items()), *more]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = start_mortal(words, stdout=log, stderr=log)

    def _await(self, ready: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if ready():
                    return
            except (OSError, RefusedError):
                pass  # not yet
            if dead := [name for name, process in self._running.items() if process.poll() is not None]:
                raise AssertionError(f"{failure}: {dead[0]} has ended:\n{self.log(dead[0])}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{failure} within {START_SECONDS:.0f} s:\n{self.log('kube-apiserver')}")
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """The end of what a process said."""
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-20:])


def start_mortal(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills as soon as the calling thread ends, however that comes about."""
    return subprocess.Popen(["setpriv", "--pdeathsig=KILL", "--", *words], stdin=subprocess.DEVNULL, **options)


@contextmanager
def running(folder: Path, kinds: Sequence[Json]) -> Iterator[ControlPlane]:
    """A control plane while inside."""
    plane = ControlPlane(folder)
    try:
        plane.start(kinds)
        yield plane
    finally:
        plane.stop()
