"""Where the agent's source is, and the place in a group that the operator would tell it."""

from pathlib import Path

TRAINER = Path(__file__).parents[3] / "trainer-image"
AGENT = TRAINER / "agent"
PLACE = {
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_REPLICAS": "2",
    "TRAINYARD_PROCESSES_PER_REPLICA": "2",
    "TRAINYARD_ATTEMPT": "1",
    "TRAINYARD_JOB_UID": "uid",
}
"""Worker 1 of 2, with two ranks each."""
