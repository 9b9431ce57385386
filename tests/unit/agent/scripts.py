"""Pieces of the scripts that ranks run in these tests."""

COLD = {"TRAINYARD_WARM_START": "0"}
"""Without a warm start, which is tested by itself."""
STAY = """
A = os.environ["TRAINYARD_ATTEMPT"]
say(f"ran{R}-{A}", os.getpid())
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
"""
