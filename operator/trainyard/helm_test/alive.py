"""`python -m trainyard.helm_test.alive`: whether the API server has answered the test within the last minute. What the pod's probes ask."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trainyard.helm_test import SIGN_OF_LIFE

PATIENCE_SECONDS = 60.0


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Returns the exit code: 0 where it has."""
    sign = Path(environ[SIGN_OF_LIFE])
    try:
        silent = time.time() - sign.stat().st_mtime
    except FileNotFoundError:
        sys.stderr.write(f"the API server has not answered yet: there is no {sign}\n")
        return 1
    if silent > PATIENCE_SECONDS:
        sys.stderr.write(f"the API server has not answered for {silent:.0f} s\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
