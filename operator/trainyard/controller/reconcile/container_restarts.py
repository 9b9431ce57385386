"""Find out by a dry run whether the cluster can restart a container in its pod, and add the rule to manifests if so.

An API server without the feature drops the rule silently or refuses it, depending on its release and feature gates. A
node that is older than the server lets the pod fail, which is noticed when it happens.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.domain.state.observe import is_restartable
from trainyard.frameworks.restart_rules import RestartAction, supported_actions, with_restart_rule
from trainyard.frameworks.worker_spec import Json
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS

_LOG = logging.getLogger(__name__)

ANSWER_VALID_SECONDS = 3600.0
"""How long an answer holds: clusters are upgraded."""
FAILED_PROBE_SKIP_SECONDS = 60.0
"""How long a namespace is left out after a dry run that failed for another reason, for example a quota."""
MAX_SKIPPED_NAMESPACES = 1000


@dataclass(slots=True)
class ContainerRestartSupport:
    """Asks once an hour for each kind of restart, with the first pod that could use it. A missing feature never keeps a
    pod from being created.
    """

    writer: Writer
    clock: Callable[[], float] = time.monotonic
    _answers: dict[RestartAction, tuple[bool, float]] = field(default_factory=dict, init=False)
    """Whether the cluster supports the rule, and until when that answer holds."""
    _skipped_until: dict[str, float] = field(default_factory=dict, init=False)
    """The namespaces whose pods get no rule, and until when."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def with_supported_rule(self, namespace: str, manifest: Json) -> Json:
        """Return the worker's pod, with the rule if the cluster supports it and the pod can use it."""
        for rule in supported_actions(manifest["spec"]):
            if await self._is_supported(rule, namespace, manifest):
                return with_restart_rule(manifest, rule)
        return manifest

    def retries_without_rule(self, namespace: str, error: ApiError) -> bool:
        """Return whether to retry a refused pod without its rule. A policy may forbid the rule, or the API server is
        too old for it.
        """
        retried = error.status in {400, 403, 422} and not (error.quota_exceeded or error.permission_denied)
        if retried:
            self._skip(namespace, ANSWER_VALID_SECONDS)
        return retried

    async def _is_supported(self, rule: RestartAction, namespace: str, manifest: Json) -> bool:
        async with self._lock:
            if self.clock() < self._skipped_until.get(namespace, float("-inf")):
                return False
            supported, until = self._answers.get(rule, (False, float("-inf")))
            if self.clock() < until:
                return supported
            answer = await self._probe(rule, namespace, manifest)
            if answer is None:
                self._skip(namespace, FAILED_PROBE_SKIP_SECONDS)
                return False
            _LOG.info(f"probed the cluster for a container restart rule rule={rule} supported={str(answer).lower()}")
            self._answers[rule] = answer, self.clock() + ANSWER_VALID_SECONDS
            return answer

    async def _probe(self, rule: RestartAction, namespace: str, manifest: Json) -> bool | None:
        """Return whether the server accepts the rule; None if the dry run failed for another reason. The real request
        reports that reason.
        """
        accepted = await self._dry_run(namespace, with_restart_rule(manifest, rule))
        if accepted is None:
            # The user's own template may cause the refusal. The rule causes it if the pod passes without.
            return False if await self._dry_run(namespace, manifest) is not None else None
        return accepted

    async def _dry_run(self, namespace: str, manifest: Json) -> bool | None:
        """Return whether a pod would keep its rule; None if it would be refused."""
        try:
            return is_restartable(await self.writer.try_create(PODS, namespace, manifest))
        except ApiError as error:
            _LOG.debug(f"dry run of a pod with a restart rule failed: {error}")
            return None
        except (KeyError, TypeError, IndexError):
            return None

    def _skip(self, namespace: str, seconds: float) -> None:
        now = self.clock()
        if len(self._skipped_until) >= MAX_SKIPPED_NAMESPACES:
            self._skipped_until = {name: until for name, until in self._skipped_until.items() if now < until}
        self._skipped_until[namespace] = now + seconds
