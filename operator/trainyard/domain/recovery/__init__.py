"""Decide what follows a failure or a disruption. Pure."""
