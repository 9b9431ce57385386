"""The logger of an HTTP server that anybody can connect to: malformed requests are no errors of this program."""

import logging

from aiohttp import ClientError
from aiohttp.http_exceptions import HttpProcessingError


def wire_log(module: str) -> logging.Logger:
    """Return the logger of this module's HTTP server. It logs only errors of this program."""
    log = logging.getLogger(f"{module}.wire")
    log.addFilter(_is_own_error)
    return log


def _is_own_error(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ClientError | ConnectionError)
