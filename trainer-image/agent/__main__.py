"""The zipapp begins here."""

import sys

from trainyard_agent.main import main

sys.exit(main())
