"""What all tests share: hypothesis's profiles. `HYPOTHESIS_PROFILE=ci` gives the same examples in each run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None)
# The machine of a CI run is slow and shared: no example may fail for its time, and no run may differ from the last.
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))
