"""Fork the ranks of later attempts from a process that has done the program's imports. Where anything about it is unusual, there is
no such process, and the ranks are started without preparation. docs/design/0022-warm-start-process.md has the alternatives.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import pkgutil
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard_agent import memory
from trainyard_agent.group import Group
from trainyard_agent.program import PER_RANK_PREFIXES, PER_RANK_VARIABLES, Program, differing, parse, stable
from trainyard_agent.spawn import spawn

SWITCH = "TRAINYARD_WARM_START"
WARM_VARIABLE = "TRAINYARD_WARM_PROCESS"
"""Set for the warm process alone: `sitecustomize.py` observes no libraries that it imports."""
DELAY_SECONDS = 5.0
"""After the ranks' own start, which the imports must not slow down."""
ANSWER_SECONDS = 5.0
"""How long a fork may take."""
MIN_FREE_BYTES = 1 << 30
"""Of memory, twice what the imports of torch and much more take."""
MIB = 1 << 20
MAX_ANSWER_BYTES = 64 * 1024


class WarmStart:
    """The warm process of one command. `start` is for the thread that has the group."""

    def __init__(
        self, words: Sequence[str], group: Group, log: Callable[[str], None], is_wanted: Callable[[], bool]
    ) -> None:
        """`is_wanted`: whether there may be a next attempt at all."""
        self._words, self._group, self._log, self._is_wanted = words, group, log, is_wanted
        self._program: Program | None = parse(words)
        self._has_started = False
        self._socket: socket.socket | None = None
        self._pid: int | None = None
        self._environments: Sequence[Mapping[str, str]] = [{}]
        """Of the ranks at the time of its start. The process itself has the first."""
        self._read: Sequence[str] = ()
        """The variables of an attempt or rank that libraries have read in it."""
        self.is_ready = False
        """Whether ranks can be forked from it."""
        self.resident = 0
        """Bytes of memory that it holds, most of which ranks forked from it share."""

    @property
    def is_preparing(self) -> bool:
        """Whether it is not known yet if ranks can be forked."""
        return self._socket is not None and not self.is_ready

    def prepare(self, environments: Sequence[Mapping[str, str]], *, delay: bool) -> None:
        """Start the process once, if the command is a Python program. `delay`: ranks start at this moment."""
        program = self._program
        first = environments[0]
        if program is None or self._has_started or first.get(SWITCH) == "0" or first.get("PYTHONINSPECT"):
            return
        self._has_started = True
        work = {
            "per_rank_variables": [*PER_RANK_VARIABLES],
            "per_rank_prefixes": PER_RANK_PREFIXES,
            "module": program.module,
            "name": program.name,
            "arguments": list(program.arguments),
            "words": list(self._words),
            "delay": DELAY_SECONDS if delay else 0.0,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        command = (*program.interpreter, "-c", source(), str(theirs.fileno()), json.dumps(work))
        try:
            with Path(os.devnull).open("wb") as null:
                self._pid = spawn(command, {**first, WARM_VARIABLE: "1"}, null.fileno())
        except OSError:
            # The start of the ranks will fail in the same way.
            ours.close()
            return
        finally:
            theirs.close()
        self._socket, self._environments = ours, environments
        self._group.protected.add(self._pid)
        self._group.watch_file(ours.fileno(), self._read_message)

    def start(self, environments: Mapping[int, Mapping[str, str]]) -> bool:
        """Fork these ranks. False: none was, and none will be."""
        if not self.is_ready or self._socket is None:
            return False
        if any(each.get(SWITCH) == "0" for each in environments.values()):
            self.end("it is switched off")
            return False
        if any(stable(each) != stable(self._environments[0]) for each in environments.values()):
            self._log("skipped warm start: the environment of the ranks has changed")
            return False
        if self._ends_for_differing_reads([*environments.values()]):
            return False
        self._group.reset()
        shut, opens = os.pipe()
        pipes: dict[int, int] = {}
        forked: list[tuple[int, int]] = []
        try:
            for rank, variables in environments.items():
                pipes[rank], theirs = os.pipe()
                try:
                    forked.append((rank, self._fork(self._socket, variables, theirs, shut)))
                finally:
                    os.close(theirs)
            for rank, pid in forked:
                self._group.adopt(rank, pid, pipes.pop(rank))
            os.write(opens, b"g" * len(forked))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.end(f"{error}")
            # Those that were forked wait at the gate, and have done nothing yet.
            self._group.kill()
            return False
        else:
            return True
        finally:
            for each in (shut, opens, *pipes.values()):
                os.close(each)

    def end(self, why: str) -> None:
        """Kill the process: ranks are started without it from now on."""
        if self._socket is None:
            return
        self._log(f"disabled warm start: {why}")
        self.is_ready, self.resident = False, 0
        self._group.unwatch_file(self._socket.fileno())
        self._socket.close()
        self._socket = None
        if self._pid in self._group.protected:
            self._group.protected.discard(self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _ends_for_differing_reads(self, environments: Sequence[Mapping[str, str]]) -> bool:
        """End the process where its imports read variables that differ for these ranks. Returns whether they did."""
        names = differing(self._read, self._environments[0], environments)
        if names:
            self.end(f"what is imported reads {', '.join(names)}, which differs between ranks or attempts")
        return bool(names)

    def _fork(self, agent: socket.socket, variables: Mapping[str, str], error: int, gate: int) -> int:
        """Return the PID of a new rank that waits at the gate. Raises OSError, ValueError, KeyError."""
        content = os.memfd_create("rank")
        try:
            data = json.dumps({"agent": os.getpid(), "environment": dict(variables)}).encode()
            while data:
                data = data[os.write(content, data) :]
            os.lseek(content, 0, os.SEEK_SET)
            files = array.array("i", [content, error, gate])
            agent.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], socket.MSG_DONTWAIT)
        finally:
            os.close(content)
        if not select.select([agent], [], [], ANSWER_SECONDS)[0]:
            raise OSError("the warm process does not answer")
        return int(self._receive(agent)["pid"])

    @staticmethod
    def _receive(agent: socket.socket) -> dict[str, Any]:
        data = agent.recv(MAX_ANSWER_BYTES)
        if not data:
            raise OSError("the warm process has exited")
        message: dict[str, Any] = json.loads(data)
        return message

    def _read_message(self) -> None:
        if self._socket is None:
            return
        try:
            message = self._receive(self._socket)
            if "rested" in message:
                self._start_imports(self._socket)
            elif "unsafe" in message:
                # In one line, whatever the exception's text is.
                self.end(" ".join(str(message["unsafe"]).split()))
            elif "ready" in message:
                self._read = message["read"]
                if self._ends_for_differing_reads(self._environments):
                    return
                self.is_ready = True
                modules = ",".join(dict.fromkeys(name.partition(".")[0] for name in message["ready"])) or "none"
                seconds, self.resident = message["seconds"], int(message["resident"])
                size = self.resident // MIB
                self._log(f"prepared warm start imported={modules} seconds={seconds:.1f} memory={size}MiB")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.end(f"{error}")

    def _start_imports(self, agent: socket.socket) -> None:
        free = memory.free()
        if not self._is_wanted():
            self.end("the operator does not restart in place")
        elif free is not None and free < MIN_FREE_BYTES:
            self.end(f"{free // MIB} MiB of the container's memory are free, and {MIN_FREE_BYTES // MIB} should be")
        else:
            agent.send(b"i")


def source() -> str:
    """Return what the process runs: one text, since it has no modules of the agent's."""
    names = ("import_prefix.py", "env_reads.py", "forkserver_child.py")
    texts = ((pkgutil.get_data("trainyard_agent", name) or b"").decode() for name in names)
    ours = ("from __future__", "from trainyard_agent")
    lines = [line for text in texts for line in text.splitlines() if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *lines])
