"""Let the liveness and startup probe of a worker's main container wait while the agent waits for the group. Pure.

The kubelet kills a container whose probe fails. A worker that waits in place has no program that could answer, so its probes
go through a script of the agent, which knows. The user's own check follows once the program runs.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainyard.domain.recovery.agent_injection import SHELL
from trainyard.frameworks.agent_wrapper import AGENT_DIR, starts_injected_agent
from trainyard.frameworks.worker_spec import Json

PROBES = ("livenessProbe", "startupProbe")
"""Those that kill a container. A readiness probe fails rightly while no program runs."""
REQUESTS = {"httpGet": "http", "tcpSocket": "tcp", "grpc": "grpc"}
"""The checks that the kubelet makes itself, with the name that the agent has for each."""
DEFAULT_TIMEOUT_SECONDS, DEFAULT_PERIOD_SECONDS, DEFAULT_FAILURE_THRESHOLD = 1, 10, 3
PYTHON_START_SECONDS = 5
"""Added to the time limit of a check that the agent makes: Python has to start for it, on a busy machine."""
DELAY_VARIABLE = "TRAINYARD_PROBE_DELAY_SECONDS"


def with_waiting_probes(spec: Json) -> Json:
    """Return the pod spec in which the main container's probes wait; unchanged without probes or an injected agent."""
    main: Json = spec["containers"][0]
    probes = {name: main[name] for name in PROBES if main.get(name)}
    if not probes or not starts_injected_agent(main):
        return spec
    own: list[Json] = main.get("env") or []
    is_set = any(variable["name"] == DELAY_VARIABLE for variable in own)
    delay = [] if is_set else [{"name": DELAY_VARIABLE, "value": str(_start_seconds(probes))}]
    waiting = {name: _waiting(probe, main) for name, probe in probes.items()}
    changed = {**main, **waiting, "env": [*delay, *own]}
    return {**spec, "containers": [changed, *spec["containers"][1:]]}


def _waiting(probe: Json, main: Json) -> Json:
    """Return the probe with the agent's script before its check. A check of an unknown kind stays as it is."""
    script = [SHELL, f"{AGENT_DIR}/probe"]
    if command := (probe.get("exec") or {}).get("command"):
        return {**probe, "exec": {"command": [*script, "--", *command]}}
    kind = next((name for name in REQUESTS if probe.get(name)), None)
    port = _port(probe[kind].get("port"), main) if kind else None
    if kind is None or port is None:
        return probe
    seconds = probe.get("timeoutSeconds") or DEFAULT_TIMEOUT_SECONDS
    request = {"kind": REQUESTS[kind], "port": port, "timeout": seconds, **_details(probe[kind])}
    rest = {name: value for name, value in probe.items() if name != kind}
    # The kubelet would expand `$(NAME)` in a command, which it leaves alone in a request.
    text = json.dumps(request, sort_keys=True).replace("$", "$$")
    return {**rest, "timeoutSeconds": seconds + PYTHON_START_SECONDS, "exec": {"command": [*script, text]}}


def _details(check: Mapping[str, Any]) -> Json:
    names = {"host": "host", "path": "path", "scheme": "scheme", "httpHeaders": "headers", "service": "service"}
    return {ours: check[theirs] for theirs, ours in names.items() if check.get(theirs)}


def _port(port: object, main: Json) -> int | None:
    """Return the number of a port that a probe may name."""
    if isinstance(port, int):
        return port
    named = (each for each in main.get("ports") or () if each.get("name") == port)
    found = next((each.get("containerPort") for each in named), None)
    return found if isinstance(found, int) else int(port) if isinstance(port, str) and port.isdecimal() else None


def _start_seconds(probes: Mapping[str, Json]) -> int:
    """Return the seconds for which the kubelet leaves a program alone after its start."""
    liveness, startup = probes.get("livenessProbe") or {}, probes.get("startupProbe") or {}
    budget = _number(startup, "periodSeconds", DEFAULT_PERIOD_SECONDS) * _number(
        startup, "failureThreshold", DEFAULT_FAILURE_THRESHOLD
    )
    starts = _number(startup, "initialDelaySeconds", 0) + budget if startup else 0
    return max(_number(liveness, "initialDelaySeconds", 0), starts)


def _number(probe: Json, name: str, default: int) -> int:
    value = probe.get(name)
    return value if isinstance(value, int) and value > 0 else default
