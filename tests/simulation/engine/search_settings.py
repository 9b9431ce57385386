"""The settings of hypothesis for random schedules."""

from hypothesis import HealthCheck, Phase, settings

STEPS = 12
"""Steps of one schedule."""

SETTINGS = settings(
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[*HealthCheck],
)
