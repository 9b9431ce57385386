"""The commands on a whole cluster, as sequences of the steps that the other modules know how to do."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster import (
    cgroups,
    control_plane,
    host_changes,
    images_seed,
    kernel,
    monitoring,
    network,
    node,
    node_view,
    pki,
    policies,
    processes,
    scale,
    shape as shapes,
    teardown,
    tools as go_tools,
)
from dev.localcluster.addresses import PROMETHEUS_URL, node_name
from dev.localcluster.api import Api, wait_until
from dev.localcluster.disk import require_free
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.say import say
from dev.localcluster.shape import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dev.localcluster.paths import Paths
    from dev.localcluster.shape import Shape

NODES_SECONDS: Final = 120.0


def up(shape: Shape, paths: Paths) -> None:
    """Brings a cluster of this shape up, or the stopped parts of one that is up already.

    Raises:
        LocalClusterError: it cannot; what was begun is cleared away.
    """
    teardown.require_ownership(paths)
    tools = build(shape.profile, paths)
    if (running := current(paths)) is not None:
        if running != shape:
            raise LocalClusterError(f"a cluster of another shape is up ({running.describe()}): `down` comes first")
        _bring_back(shape, paths, tools)
        say(f"the cluster is already running: {shape.describe()}")
        return
    if teardown.has_leftovers(paths):
        say("removing the remains of an earlier cluster")
        teardown.clear(paths)
    began = time.monotonic()
    require_host(paths)
    try:
        _create(shape, paths, tools)
    except BaseException:  # a Ctrl-C or a reader that has gone leaves nothing behind either
        teardown.clear(paths)
        raise
    shapes.write(shape, paths)
    say(f"the cluster is ready after {time.monotonic() - began:.1f} s: {shape.describe()}")


def down(paths: Paths) -> None:
    """Takes the cluster down, or what is left of one."""
    teardown.require_ownership(paths)
    if not teardown.has_leftovers(paths):
        say("no local cluster is running")
        return
    teardown.clear(paths)
    say("the cluster is deleted")


def build(profile: Profile, paths: Paths) -> dict[str, Path]:
    """The programs that a profile needs, built if need be."""
    return go_tools.ensure(*go_tools.EVERYDAY, *(go_tools.SCALE if profile == Profile.SCALE else ()), paths=paths)


def current(paths: Paths) -> Shape | None:
    """The shape of the running cluster; none where its control plane is not complete."""
    shape = shapes.read(paths)
    if shape is None or control_plane.dead(paths):
        return None
    if shape.profile == Profile.SCALE and processes.alive(paths, "kwok") is None:
        return None
    return shape


def require_host(paths: Paths) -> None:
    """Is all there that a cluster needs of the machine?

    Raises:
        LocalClusterError: something is not.
    """
    paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.cache, prefix=".try-") as scratch:
        kernel.require_features(Path(scratch))
    cgroups.require_controllers()
    require_free(paths.cache, gigabytes=2, purpose="the cluster")
    network.require_free_addresses()
    network.require_free_ports(network.LOOPBACK_ENDPOINTS)


def require_running(paths: Paths) -> Shape:
    """The running cluster's shape.

    Raises:
        LocalClusterError: none is up.
    """
    shape = current(paths)
    if shape is None:
        raise LocalClusterError("no local cluster is running: `python -m dev.localcluster up` starts one")
    return shape


def stop_node(number: int, paths: Paths) -> None:
    """A power cut of one node."""
    _require_node(number, require_running(paths))
    node.cut_power(number, paths)
    say(f"{node_name(number)} is powered off")


def start_node(number: int, paths: Paths) -> None:
    """Boots a node that is off, and waits until it is Ready with its GPUs."""
    shape = require_running(paths)
    _require_node(number, shape)
    if processes.alive(paths, node_name(number)) is not None:
        say(f"{node_name(number)} is already powered on")
        return
    _boot([number], shape, paths, build(shape.profile, paths))
    say(f"{node_name(number)} is Ready")


def load(archive: Path, paths: Paths) -> None:
    """Makes the images of an archive known to all nodes."""
    shape = require_running(paths)
    if archive.is_dir():
        raise LocalClusterError(f"{archive} is a folder: name an OCI archive, a file that ends in .tar")
    images_seed.load(archive, paths, build(shape.profile, paths), running_nodes(shape, paths))
    say(f"{archive.name} is loaded")


def monitor(paths: Paths, names: Sequence[str] = monitoring.DAEMONS, rules: Sequence[Path] = ()) -> None:
    """Starts what tells autoscalers and people of metrics, beside a cluster of real nodes that is up; Prometheus with these files of rules."""
    if require_running(paths).profile == Profile.SCALE:
        raise LocalClusterError("the nodes of the scale profile are played by kwok and have no metrics")
    if missing := [str(each) for each in rules if not each.is_file()]:
        raise LocalClusterError(f"--rules names a file that is not there: {missing[0]}")
    programs = {monitoring.PROGRAMS[name] for name in names}
    monitoring.start(paths, go_tools.ensure(*sorted(programs), paths=paths), names, rules)
    say(
        f"up: {', '.join(names)}; Prometheus is at {PROMETHEUS_URL}"
        if "prometheus" in names
        else f"up: {', '.join(names)}"
    )


def enforce(paths: Paths) -> None:
    """Make each node enforce NetworkPolicies, those that boot later too, until the cluster is taken down.

    Raises:
        LocalClusterError: no real nodes are up, the kernel cannot do it, or the programs do not start.
    """
    shape = require_running(paths)
    if shape.profile == Profile.SCALE:
        raise LocalClusterError("the nodes of the scale profile are played by kwok and have no network")
    with tempfile.TemporaryDirectory(dir=paths.cache, prefix=".try-") as scratch:
        kernel.require_features(Path(scratch), kernel.POLICY_FEATURES)
    policies.ask_for(paths)
    policies.start(paths, running_nodes(shape, paths))
    say("the nodes enforce NetworkPolicies")


def running_nodes(shape: Shape, paths: Paths) -> list[int]:
    """The numbers of the real nodes that are on."""
    return [number for number in _real_nodes(shape) if processes.alive(paths, node_name(number)) is not None]


def _real_nodes(shape: Shape) -> range:
    return range(1, shape.nodes + 1) if shape.profile == Profile.STANDARD else range(0)


def _require_node(number: int, shape: Shape) -> None:
    if shape.profile == Profile.SCALE:
        raise LocalClusterError("the nodes of the scale profile are played by kwok and have no power to cut")
    if number not in _real_nodes(shape):
        raise LocalClusterError(f"there is no node {number}: the cluster has nodes 1 to {shape.nodes}")


def _create(shape: Shape, paths: Paths, tools: dict[str, Path]) -> None:
    shutil.rmtree(paths.logs, ignore_errors=True)
    paths.state.mkdir(parents=True)
    paths.state.chmod(0o700)
    say("creating the bridge, keys and certificates")
    network.create_bridge(paths)
    host_changes.make(paths)
    network.require_free_ports(network.BRIDGE_ENDPOINTS)
    real = _real_nodes(shape)
    pki.create(paths.pki, len(real))
    say("starting the control plane")
    with ThreadPoolExecutor() as pool:
        stores = pool.submit(_make_stores, real, paths, tools)
        control_plane.start(paths, tools, scale=shape.profile == Profile.SCALE)
        stores.result()
    _boot(real, shape, paths, tools)
    if shape.profile == Profile.SCALE:
        say(f"registering {shape.nodes} nodes")
        scale.start(paths, tools)
        scale.create_nodes(Api(paths.pki), shape.nodes, shape.gpus_per_node)
        _await_nodes(range(1, shape.nodes + 1), shape, paths, node_view.LONG_AGO)
    control_plane.await_service_account(paths)


def _make_stores(numbers: Sequence[int], paths: Paths, tools: dict[str, Path]) -> None:
    if numbers:
        images_seed.refresh(paths, tools)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: images_seed.clone(paths, number), numbers))


def _bring_back(shape: Shape, paths: Paths, tools: dict[str, Path]) -> None:
    real = _real_nodes(shape)
    if real:
        images_seed.refresh(paths, tools)
        on = running_nodes(shape, paths)
        images_seed.synchronise(paths, tools, on)
        _boot([number for number in real if number not in on], shape, paths, tools)


def _boot(numbers: Sequence[int], shape: Shape, paths: Paths, tools: dict[str, Path]) -> None:
    if not numbers:
        return
    say(f"booting {', '.join(map(node_name, numbers))}")
    since = datetime.now(UTC) if shapes.read(paths) else node_view.LONG_AGO
    plans = [node.NodePlan(number, shape.nodes, shape.gpus_per_node, tools) for number in numbers]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda plan: node.boot(plan, paths), plans))
    _await_nodes(numbers, shape, paths, since)
    if policies.asked_for(paths):
        policies.start(paths, numbers)
    images_seed.synchronise(paths, tools, numbers)


def _await_nodes(numbers: Sequence[int], shape: Shape, paths: Paths, since: datetime) -> None:
    api = Api(paths.pki)

    def ready() -> bool:
        views = node_view.nodes(api)
        names = map(node_name, numbers)
        return all(name in views and views[name].is_up(shape.gpus_per_node, since) for name in names)

    def obstacle() -> str:
        real = [node_name(number) for number in numbers if number in _real_nodes(shape)]
        ended = [name for name in real if processes.alive(paths, name) is None]
        return f"{', '.join(ended)} has ended" if ended else ""

    failure = f"not all nodes became Ready with {shape.gpus_per_node} GPUs: see the logs in {paths.logs}"
    wait_until(ready, seconds=NODES_SECONDS, failure=failure, obstacle=obstacle)
