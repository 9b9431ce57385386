"""`python -m trainyard.controller` is `trainyard-operator`."""

import sys

from trainyard.controller.bootstrap.main import main

sys.exit(main())
