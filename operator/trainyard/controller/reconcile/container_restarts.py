"""Whether the cluster can start a container anew in its pod, as it shows in a dry run, and the manifests of workers with what that takes.

A server that does not know of it drops the rule without a word, or refuses it, by its release and its feature gates. A node that is older than
the server lets the pod fail: that is seen when it happens.
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

KNOWN_SECONDS = 3600.0
"""How long an answer holds: clusters are upgraded."""
UNKNOWN_SECONDS = 60.0
"""When a namespace is asked again where something else was in the way, a quota say."""
MOST_NAMESPACES = 1000


@dataclass(slots=True)
class ContainerRestarts:
    """Asks once an hour for each kind of restart, with the first pod that could use it. No pod is to be in want of what it adds."""

    writer: Writer
    clock: Callable[[], float] = time.monotonic
    _answers: dict[RestartAction, tuple[bool, float]] = field(default_factory=dict, init=False)
    """Whether there is such, and until when that holds."""
    _without: dict[str, float] = field(default_factory=dict, init=False)
    """The namespaces whose pods get no rule, and until when."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def granted(self, namespace: str, manifest: Json) -> Json:
        """The worker's pod, with the rule where the cluster has it and the pod has a use for it."""
        for what in supported_actions(manifest["spec"]):
            if await self._is_there(what, namespace, manifest):
                return with_restart_rule(manifest, what)
        return manifest

    def refused(self, namespace: str, error: ApiError) -> bool:
        """A pod with a rule was refused: whether it is to be tried without. A policy may be against it, or an API server of an older release."""
        tried_again = error.status in {400, 403, 422} and not (error.quota_exceeded or error.permission_denied)
        if tried_again:
            self._leave_out(namespace, KNOWN_SECONDS)
        return tried_again

    async def _is_there(self, what: RestartAction, namespace: str, manifest: Json) -> bool:
        async with self._asking:
            if self.clock() < self._without.get(namespace, float("-inf")):
                return False
            there, until = self._answers.get(what, (False, float("-inf")))
            if self.clock() < until:
                return there
            answer = await self._ask(what, namespace, manifest)
            if answer is None:
                self._leave_out(namespace, UNKNOWN_SECONDS)
                return False
            _LOG.info(f"this cluster {'has' if answer else 'does not have'} {what} among its rules for containers")
            self._answers[what] = answer, self.clock() + KNOWN_SECONDS
            return answer

    async def _ask(self, what: RestartAction, namespace: str, manifest: Json) -> bool | None:
        """Whether the server takes the rule; None where it does not come to that. What is in the way is told by the request in earnest."""
        taken = await self._try(namespace, with_restart_rule(manifest, what))
        if taken is None:
            # The pod may be refused for what is the user's own. The rule is, where it is not refused without.
            return False if await self._try(namespace, manifest) is not None else None
        return taken

    async def _try(self, namespace: str, manifest: Json) -> bool | None:
        """Whether a pod would have a rule; None where it would not be made."""
        try:
            return is_restartable((await self.writer.try_create(PODS, namespace, manifest))["spec"])
        except ApiError as error:
            _LOG.debug(f"a pod with a rule for its container, tried: {error}")
            return None
        except (KeyError, TypeError, IndexError):
            return None

    def _leave_out(self, namespace: str, seconds: float) -> None:
        now = self.clock()
        if len(self._without) >= MOST_NAMESPACES:
            self._without = {each: until for each, until in self._without.items() if now < until}
        self._without[namespace] = now + seconds
