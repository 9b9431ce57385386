"""`python -m trainyard.helm_test.alive`: the probe of the test pod. It fails if the API server has not responded for a minute."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trainyard.helm_test import HEARTBEAT_FILE_VARIABLE

MAX_SILENCE_SECONDS = 60.0


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Return the exit code: 0 if the API server has responded."""
    heartbeat = Path(environ[HEARTBEAT_FILE_VARIABLE])
    try:
        silence = time.time() - heartbeat.stat().st_mtime
    except FileNotFoundError:
        sys.stderr.write(f"the API server has not responded yet: {heartbeat} does not exist\n")
        return 1
    if silence > MAX_SILENCE_SECONDS:
        sys.stderr.write(f"the API server has not responded for {silence:.0f} s\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
