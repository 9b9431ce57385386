"""Run the process: read settings, connect, run the operator, and return an exit code."""

import asyncio
import logging
import sys
import time

import uvloop
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from pydantic import ValidationError

from trainyard.certificates.contents import CertificateError
from trainyard.controller.bootstrap import logs
from trainyard.controller.bootstrap.assembly import assemble
from trainyard.controller.bootstrap.http_server import ListenError
from trainyard.controller.bootstrap.limits import collect_garbage_rarely, raise_open_file_limit
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.controller.metrics.memory_limit import register_memory_limit
from trainyard.engine.leader import LeadershipLostError
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.login import LoginError, connect
from trainyard.kube.reflector import RestoredError
from trainyard.kube.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)


def main() -> int:
    """Run the console script. Returns 0 after a signal, 1 after a failure, 2 if it cannot start, 3 after a lost
    leadership.
    """
    try:
        settings = Settings()
        logs.configure(settings.log_level)
        raise_open_file_limit()
        registry = process_registry()
        metrics = EngineMetrics(registry, "trainingjob")
        budget = TokenBucket(settings.api_qps, settings.api_burst, time.monotonic)
        session = connect(settings.context, on_request=metrics.on_request, budget=budget)
    except ValidationError as error:
        for problem in error.errors():
            name, *path = map(str, problem["loc"])
            where = f"{'.'.join(path)}: " if path else ""
            sys.stderr.write(f"trainyard-operator: TRAINYARD_{name.upper()}: {where}{problem['msg']}\n")
        return 2
    except LoginError as error:
        sys.stderr.write(f"trainyard-operator: {error}\n")
        return 2

    async def run() -> None:
        stop = asyncio.Event()
        shell.handle_signals(stop)
        await assemble(settings, session, metrics, registry).run(stop)

    try:
        collect_garbage_rarely()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (ListenError, CertificateError) as error:
        _LOG.error(f"cannot start: {error}")
        return 2
    except LeadershipLostError as error:
        # Exit instead of becoming a standby: a new process has no requests in flight, and no memory of its decisions as
        # the leader.
        _LOG.error(f"exiting: leadership lost: {error}")
        return 3
    except RestoredError as error:
        _LOG.error(f"exiting: the cluster was restored from a backup: {error}")
        return 1
    except Exception:  # noqa: BLE001 - the last chance to log the error as JSON
        _LOG.exception("exiting: a component failed")
        return 1
    _LOG.info("exiting: received a stop signal")
    return 0


def process_registry() -> CollectorRegistry:
    """Return a registry with the standard metrics of a process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    register_memory_limit(registry)
    return registry


if __name__ == "__main__":
    sys.exit(main())
