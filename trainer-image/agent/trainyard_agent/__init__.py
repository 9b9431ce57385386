"""The agent: PID 1 of a worker's container. Starts the ranks, stops all of them when one fails, and reports why.

Standard library only, Python 3.9 and newer: it has to run in any image that has Python. Training programs may import it too:
`from trainyard_agent import must_stop, progress`.
"""

from trainyard_agent.report import MEASURED, phase, progress
from trainyard_agent.stopping import SAVED, must_stop

__all__ = ["MEASURED", "SAVED", "must_stop", "phase", "progress"]
