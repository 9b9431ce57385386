"""The agent in a worker's pod: what brings it, and the main container's command as its argument."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.api.constants import AGENT
from trainyard.api.spec import Framework
from trainyard.domain.recovery.agent_injection import SHELL
from trainyard.domain.state.rank_layout import processes
from trainyard.frameworks.worker_spec import Json, Worker

FOLDER = "/run/trainyard"
"""Where it lies in a worker."""
SOURCE = "/opt/trainyard/agent"
"""Where it lies in its own image, the operator's."""
SHARED = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources of which a container that runs before the others costs nothing more."""

PYTHON = re.compile(r"python[0-9.]*")
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "colossalai", "composer", "fabric", "lightning", "ray"}
    | {"mpirun", "mpiexec", "orterun", "horovodrun", "srun"}
    | {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
"""Programs and modules that start the ranks of a worker themselves."""
WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Python's options that take the next word."""


@dataclass(frozen=True, slots=True)
class Source:
    """The image that holds the agent."""

    image: str
    as_volume: bool = False
    """Whether it is mounted as a volume, in place of an init container that copies from it: that takes Kubernetes 1.33 and containerd 2.1."""


def bring_agent(worker: Worker, spec: Json, source: Source) -> None:
    """Have the agent run the main container's command. Changes the pod's `spec`."""
    main: Json = spec["containers"][0]
    volumes: list[Json] = spec.get("volumes") or []
    before: list[Json] = spec.get("initContainers") or []
    if any(each["name"] == AGENT for each in (*volumes, *before, *spec["containers"])):
        # The user brings one.
        return
    command = main["command"]
    if _name(command[0]) == AGENT:
        arguments = command[1:]
    else:
        once = ["--once"] if starts_the_ranks(worker, [*command, *(main.get("args") or [])]) else []
        arguments = [*once, "--", *command]
    main["command"] = [SHELL, f"{FOLDER}/start", *arguments]
    mount: Json = {"name": AGENT, "mountPath": FOLDER}
    if source.as_volume:
        volume: Json = {"image": {"reference": source.image}}
        seen = {**mount, "subPath": SOURCE.removeprefix("/")}
    else:
        volume, seen = {"emptyDir": {}}, mount
        spec["initContainers"] = [_bringer(spec, main, source.image, mount), *before]
    main["volumeMounts"] = [*(main.get("volumeMounts") or []), {**seen, "readOnly": True}]
    spec["volumes"] = [*volumes, {"name": AGENT, **volume}]


def has_agent(spec: Json) -> bool:
    """Whether the main container's command is the agent, brought or the image's own."""
    command = spec["containers"][0].get("command") or [""]
    return _name(command[0]) == AGENT or command[:2] == [SHELL, f"{FOLDER}/start"]


def starts_the_ranks(worker: Worker, command: Sequence[str]) -> bool:
    """Whether the command is to run once, whatever the number of processes: it starts them itself, or has no ranks.

    Of a program that is neither Python nor known, with several processes to start, that is believed too: someone has to, and a launcher
    started several times would start too many. `trainyard-agent` before the command says otherwise.
    """
    if worker.spec.framework is Framework.NONE:
        return True
    program = _name(command[0])
    if PYTHON.fullmatch(program):
        return _name(_what_python_runs(iter(command[1:]))) in LAUNCHERS
    if program in LAUNCHERS or processes(worker.spec) > 1:
        return True
    return program in SHELLS and any(_name(word) in LAUNCHERS for word in re.split(r"[^\w./-]+", " ".join(command[1:])))


def _bringer(spec: Json, main: Json, image: str, mount: Json) -> Json:
    """The init container. It asks for what the main one asks for, so that it costs no place and fits where that fits."""
    resources: dict[str, Any] = main.get("resources") or {}
    asked = {
        kind: {name: amount for name, amount in resources[kind].items() if name in SHARED}
        for kind in ("requests", "limits")
        if resources.get(kind)
    }
    security: Json = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if (spec.get("securityContext") or {}).get("runAsUser") != 0:
        security["runAsNonRoot"] = True
    return {
        "name": AGENT,
        "image": image,
        "command": ["cp", f"{SOURCE}/agent", f"{SOURCE}/start", FOLDER],
        "resources": asked,
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount],
    }


def _what_python_runs(words: Iterator[str]) -> str:
    """The module or the script; nothing for code on the command line."""
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word == "-m":
            return next(words, "")
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return word
    return ""


def _name(path: str) -> str:
    return path.rpartition("/")[2]
