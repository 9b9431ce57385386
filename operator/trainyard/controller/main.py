"""The process: reads its settings, logs in, runs the operator, and ends with an exit code that says how it went."""

import asyncio
import logging
import sys

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from pydantic import ValidationError

from trainyard.controller import logs
from trainyard.controller.operator import Operator
from trainyard.controller.settings import Settings
from trainyard.engine.metrics import EngineMetrics
from trainyard.kube.login import LoginError, connect

_LOG = logging.getLogger(__name__)


def main() -> int:
    """The console script: 0 after a signal, 1 where the operator died, 2 where it could not begin."""
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        registry = process_registry()
        metrics = EngineMetrics(registry, "trainingjob")
        session = connect(settings.context, on_request=metrics.on_request)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(str(part) for part in problem["loc"]).upper()
            sys.stderr.write(f"trainyard-operator: TRAINYARD_{name}: {problem['msg']}\n")
        return 2
    except LoginError as error:
        sys.stderr.write(f"trainyard-operator: {error}\n")
        return 2

    async def run() -> None:
        await Operator.assemble(settings, session, metrics, registry).run(asyncio.Event())

    try:
        asyncio.run(run())
    except Exception:  # noqa: BLE001 - the last place where it can be told in the log's own form
        _LOG.exception("the operator ends because a part of it died")
        return 1
    _LOG.info("the operator ends as it was told to")
    return 0


def process_registry() -> CollectorRegistry:
    """A registry with what every process has to tell of itself."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


if __name__ == "__main__":
    sys.exit(main())
