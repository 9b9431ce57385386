"""How to start Flower in this pod, by what the operator has set, and what the states of runs mean, which Flower prints as JSON. Pure.

The options are those of flwr 1.42. `flwr run` exits with 0 if a run fails, so that the state of the run decides, and no exit code.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Optional

from trainyard_agent.addresses import host_and_port, port_number
from trainyard_agent.command_options import option_value
from trainyard_agent.ranks import SettingError

START_VARIABLE, NODE_CONFIG_VARIABLE = "TRAINYARD_FLOWER_START", "TRAINYARD_FLOWER_NODE_CONFIG"
"""The operator's command line of the server or of a client, and what a client knows of its place."""
OPTIONS_VARIABLE = "TRAINYARD_FLOWER_OPTIONS"
"""The user's options. They follow the operator's, and of an option that is given twice Flower takes the last."""
HOME_VARIABLE = "FLWR_HOME"
"""The folder in which Flower looks for the address of the SuperLink, and into which it unpacks programs."""
FLOWER_OPTION = "--flower"
"""The option of the zipapp that runs this pod's part of a federation, with the user's command after it."""
CONNECTION = "trainyard"
SERVER, CLIENT = "flower-superlink", "flower-supernode"
TLS_OPTIONS = ("--ssl-certfile", "--root-certificates")
"""Those with which the user turns TLS on."""
COMPLETED, FINISHED = "finished:completed", "finished:"


class Run(NamedTuple):
    """A run of the SuperLink."""

    id: str
    status: str
    details: str


class Verdict(NamedTuple):
    """What the runs of a command mean."""

    is_final: bool
    failure: Optional[str] = None  # noqa: UP045 - Python 3.9
    """Why they have failed."""


class FlowerNode(NamedTuple):
    """What runs in one pod of a federation."""

    start: Sequence[str]
    """The operator's command line."""
    options: Sequence[str]
    """The user's."""
    node_config: str
    command: Sequence[str]
    """The user's command, which the server runs."""

    @property
    def is_server(self) -> bool:
        """Whether this is the server."""
        return self.start[0] == SERVER

    @property
    def server_address(self) -> tuple[str, int] | None:
        """The host and the port of the server that this client joins; None where there is no such address."""
        return host_and_port(self._value("--superlink"))

    @property
    def port(self) -> int:
        """The port on which the server listens; 0 where it has none."""
        return port_number(self._value("--port")) or 0

    @property
    def uses_tls(self) -> bool:
        """Whether the user has given certificates."""
        return any(self._value(name) for name in TLS_OPTIONS)

    def words(self, address: str) -> list[str]:
        """Return the command of the server or the client. `address`: the IP address of this pod; empty: it is not known."""
        own = [] if self.uses_tls else ["--insecure"]
        options, theirs = self._without_node_config()
        if self.is_server:
            # The template's options are for all, and only clients take a node configuration. Flower's default host is the loopback.
            return [*self.start, f"--host={'::' if ':' in address else '0.0.0.0'}", *own, *options]  # noqa: S104 - for the clients
        pairs = [each for each in self.node_config.split() if not _names(theirs, each.partition("=")[0])]
        config = " ".join(filter(None, (*pairs, theirs)))
        return [*self.start, *own, *options, *([f"--node-config={config}"] if config else [])]

    def connection(self, address: str) -> str:
        """Return the file in which `flwr` finds the SuperLink of this pod."""
        host = "[::1]" if ":" in address else "127.0.0.1"
        authority = self._value("--ssl-ca-certfile")
        lines = [
            "[superlink]",
            f'default = "{CONNECTION}"',
            f"[superlink.{CONNECTION}]",
            f'address = "{host}:{self.port}"',
            *([f"root-certificates = {json.dumps(authority)}"] if authority and self.uses_tls else []),
            *([] if self.uses_tls else ["insecure = true"]),
        ]
        return "\n".join(lines) + "\n"

    def _value(self, name: str) -> str:
        """Return the value of an option as Flower reads it; empty where it has none."""
        return option_value([*self.start, *self.options], name)

    def _without_node_config(self) -> tuple[list[str], str]:
        """Return the user's options without `--node-config`, and its value."""
        name, rest, value = "--node-config", list[str](), ""
        words = iter(self.options)
        for word in words:
            if word == name:
                value = next(words, "")
            elif word.startswith(f"{name}="):
                value = word[len(name) + 1 :]
            else:
                rest.append(word)
        return rest, value


LIST = ("flwr", "list", CONNECTION, "--format", "json")
"""The command that prints the runs of this pod's SuperLink."""


def flower_node(words: Sequence[str], environment: Mapping[str, str]) -> FlowerNode | None:
    """Return what to run in a pod with these variables; None where it is none of Flower. Raises SettingError.

    `words`: the user's command.
    """
    start = environment.get(START_VARIABLE, "").split()
    if not start:
        return None
    if start[0] not in {SERVER, CLIENT}:
        raise SettingError(f"{START_VARIABLE} must start with {SERVER} or {CLIENT}, got {start[0]!r}")
    try:
        own = shlex.split(environment.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise SettingError(
            f"{OPTIONS_VARIABLE} must be options of {start[0]} as a shell reads them: {error}"
        ) from error
    return FlowerNode(start, own, environment.get(NODE_CONFIG_VARIABLE, ""), words)


def runs(output: bytes) -> list[Run] | None:
    """Return the runs that `flwr list --format json` has printed; None where it has not reached the SuperLink."""
    try:
        found = json.loads(output)
    except ValueError:
        return None
    listed = found.get("runs") if isinstance(found, dict) and found.get("success") is True else None
    if not isinstance(listed, list):
        return None
    fields = ("run-id", "status", "status-details")
    return [Run(*(str(each.get(name, "")) for name in fields)) for each in listed if isinstance(each, dict)]


def verdict(found: Sequence[Run], earlier: Collection[str]) -> Verdict:
    """Return what the runs mean that a command has started, which has exited with 0. `earlier`: the IDs of those from before it."""
    own = [run for run in found if run.id not in earlier]
    if not own:
        return Verdict(
            is_final=True,
            failure="the command has started no run on the SuperLink of this job; start one with `flwr run`",
        )
    failed = [run for run in own if run.status.startswith(FINISHED) and run.status != COMPLETED]
    if failed:
        return Verdict(
            is_final=True, failure=f"run {failed[0].id} of Flower is {failed[0].status}: {failed[0].details}"
        )
    return Verdict(is_final=all(run.status == COMPLETED for run in own))


def _names(config: str, key: str) -> bool:
    """Return whether a node's configuration of `key=value` pairs has this key."""
    return any(each.partition("=")[0] == key for each in config.split())
