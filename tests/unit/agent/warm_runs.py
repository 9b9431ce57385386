"""A worker that waits until its warm process is ready, and is then told to begin."""

from pathlib import Path
from typing import NamedTuple

from tests.support.polling import until
from tests.unit.agent.operator_process import Operator, credentials
from tests.unit.agent.running import Agent

READY, NOT_READY = "prepared warm start", "disabled warm start"
OVER = 410, {"reason": "Over", "message": "the job has ended"}


class Ran(NamedTuple):
    code: int
    message: str
    output: str
    errors: str


class Run:
    """A replacement that waits until its warm process is ready, and is then told to begin."""

    def __init__(self, program: Path, folder: Path, operator: Operator, *words: str, **environment: str) -> None:
        self.operator = operator
        operator.polls.clear()
        operator.says = None
        operator.order(2, run=False)
        variables = {
            **credentials(folder, operator.port),
            "TRAINYARD_RENDEZVOUS": "wait",
            "TRAINYARD_ATTEMPT": "2",
            "TRAINYARD_REPLICAS": "1",
            "TRAINYARD_REPLICA_INDEX": "0",
            "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        }
        self.agent = Agent(program, folder, "--", *words, **{**variables, **environment})
        self.said: list[str] = []
        self.warm = environment.get("TRAINYARD_WARM_START") != "0"

    def until_ready(self, *words: str) -> str:
        """The agent's line about it."""
        assert self.agent.process.stderr is not None
        for line in self.agent.process.stderr:
            self.said.append(line)
            if any(word in line for word in (words or (READY, NOT_READY))):
                return line
        raise AssertionError(f"the agent has ended: {self.said}")

    def ends(self, **environment: str) -> Ran:
        """After one attempt."""
        self.operator.order(2, run=True, **environment)
        # One that fails at once may be known to the operator by that alone.
        until(self._has_begun, 60, "the attempt to begin")
        # If it fails, that is the end of the job.
        self.operator.says = OVER if self.agent.process.poll() is None else None
        output, errors = self.agent.process.communicate(timeout=60)
        lines = [line for line in errors.splitlines() if not line.startswith("trainyard-agent:")]
        return Ran(self.agent.process.returncode, self.agent.message, output, "\n".join(lines))

    def _has_begun(self) -> bool:
        told = any(poll["attempt"] == 2 and poll["state"] != "waiting" for poll in [*self.operator.polls])
        return told or self.agent.process.poll() is not None


def run(program: Path, folder: Path, operator: Operator, *words: str, **environment: str) -> tuple[Ran, str]:
    """One attempt of a command, and the agent's line about the warm start."""
    made = Run(program, folder, operator, *words, **environment)
    try:
        line = made.until_ready() if made.warm else ""
        return made.ends(), line
    finally:
        made.agent.kill()
