"""A process that has done the imports of the program, and from which the ranks of later attempts are forked. Where anything about it is
odd, there is none, and the ranks are started as always.
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
from trainyard_agent.program import CHANGING, CHANGING_PREFIXES, Program, differing, parse, stable
from trainyard_agent.spawn import spawn

SWITCH = "TRAINYARD_WARM_START"
DELAY_SECONDS = 5.0
"""After the ranks' own start, which it is not to slow down."""
ANSWER_SECONDS = 5.0
"""How long a fork may take."""
LEAST_MEMORY = 1 << 30
"""That must be free, twice what it takes with torch and much more."""
MIB = 1 << 20
LONGEST_WORDS = 64 * 1024


class Warm:
    """Of one command. `start` is for the thread that has the group."""

    def __init__(
        self, words: Sequence[str], group: Group, say: Callable[[str], None], wanted: Callable[[], bool]
    ) -> None:
        """`wanted`: whether there may be a next attempt at all."""
        self._words, self._group, self._say, self._wanted = words, group, say, wanted
        self._program: Program | None = parse(words)
        self._begun = False
        self._socket: socket.socket | None = None
        self._pid: int | None = None
        self._environments: Sequence[Mapping[str, str]] = [{}]
        """Of the ranks at whose time it was begun. It has the first itself."""
        self._read: Sequence[str] = ()
        """The variables of an attempt's or rank's own that libraries have read in it."""
        self.ready = False
        """Whether ranks can be forked from it."""
        self.resident = 0
        """Bytes of memory that it holds, most of which ranks forked from it share."""

    @property
    def under_way(self) -> bool:
        """Whether it is not known yet if they can."""
        return self._socket is not None and not self.ready

    def prepare(self, environments: Sequence[Mapping[str, str]], *, delay: bool) -> None:
        """Begin, if the command is one for it, and has not begun before. `delay`: ranks start at this moment."""
        program = self._program
        if program is None or self._begun or environments[0].get(SWITCH) == "0" or environments[0].get("PYTHONINSPECT"):
            return
        self._begun = True
        work = {
            "own": [*CHANGING],
            "own_prefixes": CHANGING_PREFIXES,
            "module": program.module,
            "name": program.name,
            "arguments": list(program.arguments),
            "words": list(self._words),
            "delay": DELAY_SECONDS if delay else 0.0,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        started = (*program.interpreter, "-c", source(), str(theirs.fileno()), json.dumps(work))
        try:
            with Path(os.devnull).open("wb") as nobody:
                self._pid = spawn(started, environments[0], nobody.fileno())
        except OSError:
            # The ranks' start will say so too.
            ours.close()
            return
        finally:
            theirs.close()
        self._socket, self._environments = ours, environments
        self._group.spared.add(self._pid)
        self._group.listen(ours.fileno(), self._heard)

    def start(self, environments: Mapping[int, Mapping[str, str]]) -> bool:
        """Start these ranks. False: none was, and none will be."""
        if not self.ready or self._socket is None:
            return False
        if any(each.get(SWITCH) == "0" for each in environments.values()):
            self.end("the warm start is switched off")
            return False
        if any(stable(each) != stable(self._environments[0]) for each in environments.values()):
            self._say("the ranks start from the beginning: their environment has changed")
            return False
        if self._depends([*environments.values()]):
            return False
        self._group.begin()
        shut, opens = os.pipe()
        pipes: dict[int, int] = {}
        made: list[tuple[int, int]] = []
        try:
            for rank, variables in environments.items():
                pipes[rank], theirs = os.pipe()
                try:
                    made.append((rank, self._fork(self._socket, variables, theirs, shut)))
                finally:
                    os.close(theirs)
            for rank, pid in made:
                self._group.adopt(rank, pid, pipes.pop(rank))
            os.write(opens, b"g" * len(made))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.end(f"{error}")
            # Those that were forked stand before the gate, and have done nothing yet.
            self._group.kill()
            return False
        else:
            return True
        finally:
            for each in (shut, opens, *pipes.values()):
                os.close(each)

    def end(self, why: str) -> None:
        """There is none from now on."""
        if self._socket is None:
            return
        self._say(f"the ranks start from the beginning each time: {why}")
        self.ready, self.resident = False, 0
        self._group.ignore(self._socket.fileno())
        self._socket.close()
        self._socket = None
        if self._pid in self._group.spared:
            self._group.spared.discard(self._pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _depends(self, environments: Sequence[Mapping[str, str]]) -> bool:
        """Whether libraries would be others if these ranks had imported them. Then it is of no use any more."""
        names = differing(self._read, self._environments[0], environments)
        if names:
            self.end(f"what is imported reads {', '.join(names)}, which differs between ranks or attempts")
        return bool(names)

    def _fork(self, agent: socket.socket, variables: Mapping[str, str], error: int, gate: int) -> int:
        """The PID of a rank that stands before the gate. Raises OSError, ValueError, KeyError."""
        told = {"agent": os.getpid(), "environment": dict(variables)}
        words = os.memfd_create("words")
        try:
            data = json.dumps(told).encode()
            while data:
                data = data[os.write(words, data) :]
            os.lseek(words, 0, os.SEEK_SET)
            files = array.array("i", [words, error, gate])
            agent.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], socket.MSG_DONTWAIT)
        finally:
            os.close(words)
        if not select.select([agent], [], [], ANSWER_SECONDS)[0]:
            raise OSError("the process that was prepared gives no answer")
        return int(self._receive(agent)["pid"])

    @staticmethod
    def _receive(agent: socket.socket) -> dict[str, Any]:
        data = agent.recv(LONGEST_WORDS)
        if not data:
            raise OSError("the process that was prepared has ended")
        said: dict[str, Any] = json.loads(data)
        return said

    def _heard(self) -> None:
        if self._socket is None:
            return
        try:
            said = self._receive(self._socket)
            if "rested" in said:
                self._import(self._socket)
            elif "unsafe" in said:
                # In one line, whatever the exception's text is.
                self.end(" ".join(str(said["unsafe"]).split()))
            elif "ready" in said:
                self._read = said["read"]
                if self._depends(self._environments):
                    return
                self.ready = True
                modules = ", ".join(dict.fromkeys(name.partition(".")[0] for name in said["ready"])) or "nothing"
                took, self.resident = said["seconds"], int(said["resident"])
                size = self.resident // MIB
                self._say(f"the ranks' next start is prepared: imported {modules} in {took:.1f} s, {size} MiB")
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.end(f"{error}")

    def _import(self, agent: socket.socket) -> None:
        free = memory.free()
        if not self._wanted():
            self.end("the operator knows no restarts in place")
        elif free is not None and free < LEAST_MEMORY:
            self.end(f"{free // MIB} MiB of the container's memory are free, and {LEAST_MEMORY // MIB} should be")
        else:
            agent.send(b"i")


def source() -> str:
    """What the process runs: one text, since it has no modules of ours."""
    texts = (
        (pkgutil.get_data("trainyard_agent", name) or b"").decode() for name in ("head.py", "noted.py", "warmed.py")
    )
    ours = ("from __future__", "from trainyard_agent")
    lines = [line for text in texts for line in text.splitlines() if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *lines])
