"""`python -m trainyard.controller` is `trainyard-operator`."""

import sys

from trainyard.controller.main import main

sys.exit(main())
