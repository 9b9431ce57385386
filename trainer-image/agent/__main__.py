"""The entry point of the zipapp."""

import contextlib
import os
import signal
import sys

if sys.argv[1:2] == ["--probe"]:
    from trainyard_agent.probe import main as probe

    sys.exit(probe(sys.argv[2]))
if sys.argv[1:2] == ["--remote-start"]:
    from pathlib import Path

    from trainyard_agent.remote_client import exit_with, main as remote_start

    exit_with(remote_start(Path(sys.argv[2]), sys.argv[3:]))

if sys.argv[1:2] == ["--ray"]:
    from trainyard_agent.ray_cluster import main as ray_cluster

    sys.exit(ray_cluster(sys.argv[2:]))
if sys.argv[1:2] == ["--preflight"]:
    from trainyard_agent.preflight_rank import run as preflight

    preflight(sys.argv[2])
if sys.argv[1:2] == ["--flower"]:
    from trainyard_agent.flower_federation import main as flower_federation

    sys.exit(flower_federation(sys.argv[2:]))

# The kernel delivers no signal to PID 1 that it does not catch, and a worker that is asked to exit while it starts is not asked again.
early: "list[int]" = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, _: early.append(number))
try:
    from trainyard_agent.main import main
except ImportError as error:
    # No module of the agent's own is of use here. 96 asks the operator for workers without the agent.
    reason = f"Python {sys.version_info[0]}.{sys.version_info[1]} of this image cannot run trainyard-agent: {error}"
    os.write(2, f"trainyard-agent: {reason}\n".encode(errors="replace"))
    with contextlib.suppress(OSError):
        log = os.open(os.environ.get("TRAINYARD_TERMINATION_LOG", "/dev/termination-log"), os.O_WRONLY | os.O_TRUNC)
        # As `termination_message.write` has it.
        line = '{"trainyard":1,"kind":"agentUnable","exitCode":96}'
        os.write(log, f"{line}\n{reason}".encode(errors="replace"))
    sys.exit(96)

code = main(signals=early)
sys.stdout.flush()
sys.stderr.flush()
# Without the interpreter's own clean-up: a report may be under way in a thread, and OpenSSL, cleaned up below it, would crash. The
# exit code is what the worker is judged by.
os._exit(code)
