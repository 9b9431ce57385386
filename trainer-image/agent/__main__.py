"""The zipapp begins here."""

import os
import sys

from trainyard_agent.main import main

code = main()
sys.stdout.flush()
sys.stderr.flush()
# Without the interpreter's own end: a report may be under way in a thread, and OpenSSL, cleaned up below it, would crash. The exit code
# is what the worker is judged by.
os._exit(code)
