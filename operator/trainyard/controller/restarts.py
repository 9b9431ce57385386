"""Whether the cluster can start a container anew in its pod, as it shows in a dry run, and the manifests of workers with what that takes.

A server that does not know of it drops the rule without a word, or refuses it, by its release and its feature gates. A node that is older than
the server lets the pod fail: that is seen when it happens.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.domain.observe import is_restartable
from trainyard.frameworks.restarting import Restarting, suitable, with_rule
from trainyard.frameworks.worker import Json
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS

_LOG = logging.getLogger(__name__)

KNOWN_SECONDS = 3600.0
"""How long an answer holds: clusters are upgraded."""
UNKNOWN_SECONDS = 60.0
"""When to ask again where something else was in the way, a quota say."""


@dataclass(slots=True)
class ContainerRestarts:
    """Asks once an hour for each kind of restart, with the first pod that could use it."""

    writer: Writer
    clock: Callable[[], float] = time.monotonic
    _answers: dict[Restarting, tuple[bool, float]] = field(default_factory=dict, init=False)
    """Whether there is such, and until when that holds."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def granted(self, namespace: str, manifest: Json) -> Json:
        """The worker's pod, with the rule where the cluster has it and the pod has a use for it."""
        for what in suitable(manifest["spec"]):
            if await self._is_there(what, namespace, manifest):
                return with_rule(manifest, what)
        return manifest

    async def _is_there(self, what: Restarting, namespace: str, manifest: Json) -> bool:
        async with self._asking:
            there, until = self._answers.get(what, (False, float("-inf")))
            if self.clock() < until:
                return there
            answer = await self._try(namespace, with_rule(manifest, what))
            if answer is not None:
                _LOG.info(f"this cluster {'has' if answer else 'does not have'} {what} among its rules for containers")
            seconds = UNKNOWN_SECONDS if answer is None else KNOWN_SECONDS
            self._answers[what] = bool(answer), self.clock() + seconds
            return bool(answer)

    async def _try(self, namespace: str, manifest: Json) -> bool | None:
        """Whether the server takes the rule; None where it does not come to that. What is in the way is told by the request in earnest."""
        try:
            return is_restartable((await self.writer.try_create(PODS, namespace, manifest))["spec"])
        except ApiError as error:
            _LOG.debug(f"a pod with a rule for its container, tried: {error}")
            return False if error.status in {400, 422} and "restartPolicy" in error.message else None
        except (KeyError, TypeError, IndexError):
            return None
