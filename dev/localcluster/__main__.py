"""`python -m dev.localcluster`."""

import sys

from dev.localcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
