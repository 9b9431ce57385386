"""The one exception that this package's commands show to people."""


class LocalClusterError(Exception):
    """Its text is the one sentence that is printed: what is wrong, where, and what to do."""
