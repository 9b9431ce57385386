"""Errors of the exchange with the operator.

NoAnswerError
└── UntrustedError
CalledBackError
"""


class NoAnswerError(Exception):
    """The operator did not accept the request; the message says why."""


class UntrustedError(NoAnswerError):
    """No process of the operator answered, and one has a certificate that no authority of this worker signed."""


class CalledBackError(Exception):
    """The request was called back by another thread."""
