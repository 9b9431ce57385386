"""Where the agent's source is, and the variables that the operator sets for a worker."""

from pathlib import Path

TRAINER_IMAGE = Path(__file__).parents[3] / "trainer-image"
AGENT_SOURCE = TRAINER_IMAGE / "agent"
WORKER_VARIABLES = {
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_REPLICAS": "2",
    "TRAINYARD_PROCESSES_PER_REPLICA": "2",
    "TRAINYARD_ATTEMPT": "1",
    "TRAINYARD_JOB_UID": "uid",
}
"""Worker 1 of 2, with two ranks each."""
