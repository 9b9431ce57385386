"""The coordinator under the load of many agents."""
