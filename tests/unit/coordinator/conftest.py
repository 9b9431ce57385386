from tests.support.running_coordinator import coordinator

__all__ = ["coordinator"]
