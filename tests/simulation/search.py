"""How hypothesis searches the random schedules, and how many there are."""

import os

from hypothesis import HealthCheck, Phase, settings

WANTED = int(os.environ.get("SIMULATION_SCHEDULES", "8000"))
BATCH = min(WANTED, 1000)
STEPS = 12

SETTINGS = settings(
    max_examples=BATCH,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[*HealthCheck],
)
