"""Reduce the communication between training processes: smaller messages, or fewer."""
