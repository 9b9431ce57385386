"""The command line: arguments in, one of the commands run, and one sentence where it cannot."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dev.localcluster import (
    cluster,
    go_toolchain,
    host,
    lock,
    monitoring,
    node,
    node_view,
    processes,
    tools as go_tools,
)
from dev.localcluster.addresses import node_name
from dev.localcluster.api import Api, ApiUnavailableError
from dev.localcluster.control_plane import DAEMONS
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.paths import from_environment
from dev.localcluster.say import complain, say
from dev.localcluster.shape import Profile, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dev.localcluster.paths import Paths

    Command = Callable[[argparse.Namespace, Paths], int]

# `up` and `down` say at once that another command is at work; the small ones wait for each other.
PATIENCE_SECONDS = {"up": 0.0, "down": 0.0, "node": 60.0, "load": 300.0, "monitoring": 300.0, "policies": 300.0}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        return command(options, from_environment())
    except LocalClusterError as error:
        complain(f"localcluster: {error}")
    except BrokenPipeError:  # as with `status | head -1`; nothing more can be said, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        complain("localcluster: interrupted")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dev.localcluster",
        description="A real multi-node Kubernetes on this machine, without a container engine.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=command)
        return added

    up = add("up", _up, "start the cluster; builds what it needs the first time (about 9 min on 2 cores)")
    up.add_argument("--nodes", type=int, default=3, help="number of nodes (default: 3)")
    up.add_argument("--gpus-per-node", type=int, default=8, help="fake GPUs of each node (default: 8)")
    up.add_argument(
        "--profile",
        type=Profile,
        choices=list(Profile),
        default=Profile.STANDARD,
        help="standard: real nodes; scale: nodes played by kwok",
    )
    add("down", _down, "remove the cluster and all its traces")
    add("status", _status, "say what runs; exit code 1 where no cluster is up")
    node_parser = add("node", _node, "cut a node's power, boot it, or run a command in it")
    verbs = node_parser.add_subparsers(required=True, dest="verb", metavar="VERB")
    for verb, text in (("stop", "a power cut"), ("start", "boot"), ("exec", "run a command inside the node")):
        added = verbs.add_parser(verb, help=text, description=text)
        added.add_argument("number", type=int, help="the node, counted from 1")
        if verb == "exec":
            added.add_argument("words", nargs=argparse.REMAINDER, help="the command")
    load = add("load", _load, "put the images of an OCI archive file into all nodes")
    load.add_argument("archive", type=Path)
    monitoring_text = (
        "start metrics-server, Prometheus and prometheus-adapter beside the cluster, for autoscalers and `kubectl top`"
    )
    monitors = add("monitoring", _monitoring, monitoring_text)
    monitors.add_argument(
        "--only",
        choices=monitoring.DAEMONS,
        action="append",
        help="one of them, in place of all three; may be repeated",
    )
    monitors.add_argument(
        "--rules", type=Path, action="append", default=[], help="a file of Prometheus rules, alerts for example"
    )
    add("policies", _policies, "make the nodes enforce NetworkPolicies, by kube-router, until `down`")
    add("kubeconfig", _kubeconfig, "print the path of the kubeconfig file")
    add("build", _build, "only build the programs")
    add("check", _check, "only check whether a cluster can run here")
    return parser


def _exclusive(name: str, work: Callable[[], None], needs: Mapping[str, str] = host.CLUSTER_COMMANDS) -> int:
    host.require_root()
    host.widen_path()
    host.require_commands(needs)
    busy = f"another localcluster command is at work (it holds {lock.LOCK}): wait until it has ended"
    with lock.exclusive(lock.LOCK, patience=PATIENCE_SECONDS[name], busy=busy):
        work()
    return 0


def _up(options: argparse.Namespace, paths: Paths) -> int:
    shape = Shape(options.nodes, options.gpus_per_node, options.profile)
    shape.check()
    return _exclusive("up", lambda: cluster.up(shape, paths))


def _down(_: argparse.Namespace, paths: Paths) -> int:
    return _exclusive("down", lambda: cluster.down(paths))


def _node(options: argparse.Namespace, paths: Paths) -> int:
    if options.verb == "exec":
        host.require_root()
        words = options.words[1:] if options.words[:1] == ["--"] else options.words
        return subprocess.run([*node.enter(options.number, paths), *(words or ["sh"])], check=False).returncode
    work = cluster.stop_node if options.verb == "stop" else cluster.start_node
    return _exclusive("node", lambda: work(options.number, paths))


def _load(options: argparse.Namespace, paths: Paths) -> int:
    return _exclusive("load", lambda: cluster.load(options.archive, paths))


def _monitoring(options: argparse.Namespace, paths: Paths) -> int:
    return _exclusive("monitoring", lambda: cluster.monitor(paths, options.only or monitoring.DAEMONS, options.rules))


def _policies(_: argparse.Namespace, paths: Paths) -> int:
    return _exclusive("policies", lambda: cluster.enforce(paths), {**host.CLUSTER_COMMANDS, **host.POLICY_COMMANDS})


def _kubeconfig(_: argparse.Namespace, paths: Paths) -> int:
    host.require_root()
    cluster.require_running(paths)
    say(str(paths.kubeconfig))
    return 0


def _build(_: argparse.Namespace, paths: Paths) -> int:
    for program in go_tools.ensure(paths=paths).values():
        say(str(program))
    return 0


def _check(_: argparse.Namespace, paths: Paths) -> int:
    host.require_root()
    host.widen_path()
    if packages := host.missing(host.CLUSTER_COMMANDS):
        raise LocalClusterError(f"these packages are missing (`up` installs them by apt-get): {' '.join(packages)}")
    say(f"Go: {go_toolchain.find(paths)}")
    if cluster.current(paths) is None:
        cluster.require_host(paths)
    say("a local cluster can run on this machine")
    return 0


def _status(_: argparse.Namespace, paths: Paths) -> int:
    host.require_root()
    shape = cluster.current(paths)
    if shape is None:
        say("no local cluster is running")
        return 1
    say(f"up: {shape.describe()}, Kubernetes {go_tools.KUBERNETES_VERSION}")
    for name in DAEMONS:
        say(f"  {name:<24} process {processes.alive(paths, name)}")
    try:
        views = node_view.nodes(Api(paths.pki))
    except ApiUnavailableError as error:
        raise LocalClusterError(f"the API server does not answer ({error}): see the logs in {paths.logs}") from error
    for number in range(1, shape.nodes + 1):
        name = node_name(number)
        view = views.get(name)
        power = "off, " if shape.profile == Profile.STANDARD and processes.alive(paths, name) is None else ""
        state = "not registered" if view is None else f"{'Ready' if view.ready else 'not Ready'}, {view.gpus} GPUs"
        say(f"  {name:<24} {power}{state}")
    say(f"kubeconfig: {paths.kubeconfig}")
    return 0
