"""Inject the agent into a worker's pod: its image, and the main container's command as its argument. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import basename
from typing import Any

from trainyard.api.constants import AGENT
from trainyard.api.spec import Framework
from trainyard.domain.recovery.agent_injection import SHELL
from trainyard.frameworks.launch_command import starts_ranks
from trainyard.frameworks.worker_spec import Json, Worker, command_line

AGENT_DIR = "/run/trainyard"
"""The agent's directory in a worker."""
IMAGE_AGENT_DIR = "/opt/trainyard/agent"
"""The agent's directory in its image, which is the operator's."""
START = (SHELL, f"{AGENT_DIR}/start")
"""The command that starts the injected agent; the arguments follow."""
INIT_CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources that the init container shares with the main container, which runs later."""


@dataclass(frozen=True, slots=True)
class AgentImage:
    """The image that contains the agent."""

    image: str
    as_volume: bool = False
    """Mount the image as a volume instead of copying from it in an init container. Needs Kubernetes 1.33 and
    containerd 2.1."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of the job's namespace with which nodes pull that image."""


def with_agent(worker: Worker, spec: Json, agent: AgentImage) -> Json:
    """Return the pod spec in which the agent runs the main container's command."""
    main: Json = spec["containers"][0]
    volumes: list[Json] = spec.get("volumes") or []
    init_containers: list[Json] = spec.get("initContainers") or []
    if any(named["name"] == AGENT for named in (*volumes, *init_containers, *spec["containers"])):
        # The user's own agent stays.
        return spec
    mount: Json = {"name": AGENT, "mountPath": AGENT_DIR}
    volume: Json = {"name": AGENT, "emptyDir": {}}
    container_mount: Json = {**mount, "readOnly": True}
    if agent.as_volume:
        volume = {"name": AGENT, "image": {"reference": agent.image}}
        container_mount = {**mount, "subPath": IMAGE_AGENT_DIR.removeprefix("/"), "readOnly": True}
    else:
        init_containers = [_init_container(spec, main, agent.image, mount), *init_containers]
    wrapped = {
        **main,
        "command": _wrapped_command(worker, main),
        "volumeMounts": [*(main.get("volumeMounts") or []), container_mount],
    }
    changes: Json = {"containers": [wrapped, *spec["containers"][1:]], "volumes": [*volumes, volume]}
    if init_containers:
        changes["initContainers"] = init_containers
    if agent.pull_secrets:
        changes["imagePullSecrets"] = _pull_secrets(spec, agent)
    return {**spec, **changes}


def _pull_secrets(spec: Json, agent: AgentImage) -> list[Json]:
    """Return the pull secrets of the template and those of the agent's image, each once."""
    own: list[Json] = spec.get("imagePullSecrets") or []
    named = {secret.get("name") for secret in own}
    return [*own, *({"name": name} for name in agent.pull_secrets if name not in named)]


def _wrapped_command(worker: Worker, main: Json) -> list[str]:
    """Return the command that starts the agent with the main container's command as its argument."""
    command: list[str] = main["command"]
    if basename(command[0]) == AGENT:
        return [*START, *command[1:]]
    once = ["--once"] if starts_ranks_itself(worker, command_line(main)) else []
    return [*START, *once, "--", *command]


def has_agent(spec: Json) -> bool:
    """Return whether the main container runs the agent, the injected one or the image's own."""
    main: Json = spec["containers"][0]
    command = main.get("command") or [""]
    return basename(command[0]) == AGENT or starts_injected_agent(main)


def starts_injected_agent(main: Json) -> bool:
    """Return whether this main container runs the agent that the operator injects."""
    return tuple(main.get("command") or ())[: len(START)] == START


def starts_ranks_itself(worker: Worker, command: Sequence[str]) -> bool:
    """Return whether the command runs once, whatever the number of processes: it starts the ranks itself, or there are
    none. `trainyard-agent` in front of the command overrides this.
    """
    framework = worker.spec.framework
    runs_once = framework is Framework.NONE or framework.starts_servers or framework.starts_remotely
    return runs_once or starts_ranks(command, worker.job.processes)


def unused_input(worker: Worker) -> str:
    """Return why no process reads the standard input that the main container asks for; empty where one does."""
    main: Json = worker.spec.template["spec"]["containers"][0]
    asked = [name for name in ("stdin", "tty") if main.get(name)]
    command = command_line(main)
    count = worker.job.processes
    # An agent that the image brings itself has options that are not known here.
    if not asked or not worker.job.wants_agent or basename(command[0]) == AGENT:
        return ""
    if count == 1 or starts_ranks_itself(worker, command):
        return ""
    return (
        f"the main container sets {' and '.join(asked)}, but none of its {count} processes reads the standard input. "
        f"Set processesPerReplica to 1, or debug with kubectl exec -it {worker.pod_name}"
    )


def _init_container(spec: Json, main: Json, image: str, mount: Json) -> Json:
    """Return the init container. It requests what the main container requests, so that it needs no further capacity."""
    resources: dict[str, Any] = main.get("resources") or {}
    asked = {
        kind: {name: amount for name, amount in resources[kind].items() if name in INIT_CONTAINER_RESOURCES}
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
        "command": ["cp", *(f"{IMAGE_AGENT_DIR}/{file}" for file in ("agent", "start", "probe")), AGENT_DIR],
        "resources": asked,
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount],
    }
