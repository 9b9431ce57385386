"""Parts of the scripts that ranks run in these tests."""

WARM_START_OFF = {"TRAINYARD_WARM_START": "0"}
"""Disables the warm start, which has its own tests."""
RANK_PRELUDE = """
A = os.environ["TRAINYARD_ATTEMPT"]
record(f"ran{R}-{A}", os.getpid())
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
"""
