"""Errors of the exchange with the operator, and of what the agent sets up for an attempt.

NoAnswerError
└── UntrustedError
CalledBackError
SetUpError
"""


class NoAnswerError(Exception):
    """The operator did not accept the request; the message says why."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        """`after`: seconds that the operator asks for before the next try."""
        super().__init__(message)
        self.after = after


class UntrustedError(NoAnswerError):
    """No process of the operator answered, and one has a certificate that no authority of this worker signed."""


class CalledBackError(Exception):
    """The request was called back by another thread."""


class SetUpError(OSError):
    """The agent cannot set up what an attempt needs beside its command. `strerror` says what, where, and how to fix it."""
