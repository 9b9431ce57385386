"""The process: reads its settings, logs in, runs the operator, and ends with an exit code that says how it went."""

import asyncio
import gc
import logging
import sys
import time

import uvloop
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from pydantic import ValidationError

from trainyard.controller.bootstrap import logs
from trainyard.controller.bootstrap.http_server import ListenError
from trainyard.controller.bootstrap.limits import more_files
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.coordinator.certificate import CertificateError
from trainyard.engine.leader import LeadershipLostError
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.login import LoginError, connect
from trainyard.kube.reflector import RestoredError
from trainyard.kube.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)

YOUNG_OBJECTS = 20_000
"""After so many the collector of cycles looks at them. There are hardly any cycles, and its default of 700 is one event of a large pod."""


def main() -> int:
    """The console script: 0 after a signal, 1 where the operator died, 2 where it could not begin, 3 where it leads no more."""
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        more_files()
        registry = process_registry()
        metrics = EngineMetrics(registry, "trainingjob")
        budget = TokenBucket(settings.api_qps, settings.api_burst, time.monotonic)
        session = connect(settings.context, on_request=metrics.on_request, budget=budget)
    except ValidationError as error:
        for problem in error.errors():
            name, *within = map(str, problem["loc"])
            where = f"{'.'.join(within)}: " if within else ""
            sys.stderr.write(f"trainyard-operator: TRAINYARD_{name.upper()}: {where}{problem['msg']}\n")
        return 2
    except LoginError as error:
        sys.stderr.write(f"trainyard-operator: {error}\n")
        return 2

    async def run() -> None:
        stop = asyncio.Event()
        shell.hear_signals(stop)
        await Operator.assemble(settings, session, metrics, registry).run(stop)

    try:
        # What is imported by now stays: the collector of cycles would look through all of it again and again.
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (ListenError, CertificateError) as error:
        _LOG.error(f"the operator cannot begin: {error}")
        return 2
    except LeadershipLostError as error:
        # Not to go on as a standby: a new process has nothing under way, and no memory of what it decided as the leader.
        _LOG.error(f"the operator ends, to start anew: {error}")
        return 3
    except RestoredError as error:
        _LOG.error(f"the operator ends, to start anew with what there is now: {error}")
        return 1
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
