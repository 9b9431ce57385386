"""Run a worker that receives its start order once its warm process is ready."""

from pathlib import Path
from typing import NamedTuple

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_operator import FakeOperator, credentials

READY, NOT_READY = "prepared warm start", "disabled warm start"
OVER = 410, {"reason": "Over", "message": "the job has ended"}


class Outcome(NamedTuple):
    code: int
    message: str
    output: str
    errors: str


class WarmStartRun:
    """A replacement that receives its start order once its warm process is ready."""

    def __init__(self, program: Path, folder: Path, operator: FakeOperator, *words: str, **environment: str) -> None:
        self.operator = operator
        operator.polls.clear()
        operator.fixed_answer = None
        operator.order(2, run=False)
        variables = {
            **credentials(folder, operator.port),
            "TRAINYARD_RENDEZVOUS": "wait",
            "TRAINYARD_ATTEMPT": "2",
            "TRAINYARD_REPLICAS": "1",
            "TRAINYARD_REPLICA_INDEX": "0",
            "TRAINYARD_PROCESSES_PER_REPLICA": "1",
        }
        self.agent = AgentProcess(program, folder, "--", *words, **{**variables, **environment})
        self.lines: list[str] = []
        self.warm = environment.get("TRAINYARD_WARM_START") != "0"

    def wait_until_ready(self, *words: str) -> str:
        """Wait for the agent's line about the warm start, and return it."""
        assert self.agent.process.stderr is not None
        for line in self.agent.process.stderr:
            self.lines.append(line)
            if any(word in line for word in (words or (READY, NOT_READY))):
                return line
        raise AssertionError(f"the agent has exited: {self.lines}")

    def finish(self, **environment: str) -> Outcome:
        """Start one attempt, and return its outcome."""
        self.operator.order(2, run=True, **environment)
        # A worker that fails immediately may report nothing but the failure.
        until(self._has_started, 60, "the attempt to start")
        # A failure finishes the job.
        self.operator.fixed_answer = OVER if self.agent.process.poll() is None else None
        output, errors = self.agent.process.communicate(timeout=60)
        lines = [line for line in errors.splitlines() if not line.startswith("trainyard-agent:")]
        return Outcome(self.agent.process.returncode, self.agent.message, output, "\n".join(lines))

    def _has_started(self) -> bool:
        started = any(poll["attempt"] == 2 and poll["state"] != "waiting" for poll in [*self.operator.polls])
        return started or self.agent.process.poll() is not None


def run_attempt(
    program: Path, folder: Path, operator: FakeOperator, *words: str, **environment: str
) -> tuple[Outcome, str]:
    """Run one attempt of a command. Return its outcome and the agent's line about the warm start."""
    made = WarmStartRun(program, folder, operator, *words, **environment)
    try:
        line = made.wait_until_ready() if made.warm else ""
        return made.finish(), line
    finally:
        made.agent.kill()
