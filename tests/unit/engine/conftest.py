from tests.support.fixtures import api, timers

__all__ = ["api", "timers"]
