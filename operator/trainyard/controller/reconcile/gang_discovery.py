"""Ask the API server once which of the permitted gang schedulers the cluster has, by their kinds. Decides nothing.

Nothing watches for them: an administrator who installs a scheduler later restarts the operator.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from trainyard.api.scheduling import GangScheduler
from trainyard.domain.state.gang_schedulers import COSCHEDULING_SCHEDULER, GangSchedulers
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

RETRY_SECONDS: Final = 5.0
PLURAL: Final = "podgroups"
VERSIONS: Final[Mapping[GangScheduler, Sequence[tuple[str, str]]]] = {
    GangScheduler.NATIVE: (("scheduling.k8s.io", "v1beta1"), ("scheduling.k8s.io", "v1alpha2")),
    GangScheduler.VOLCANO: (("scheduling.volcano.sh", "v1beta1"),),
    GangScheduler.COSCHEDULING: (("scheduling.x-k8s.io", "v1alpha1"),),
}
"""The API group and the versions that the operator can write, the newest first."""


def pod_groups(scheduler: GangScheduler, version: int = 0) -> Resource:
    """Return the kind of the scheduler's PodGroups, in one of the versions that the operator can write."""
    group, name = VERSIONS[scheduler][version]
    return Resource(group, name, PLURAL, "PodGroup")


@dataclass(slots=True)
class GangDiscovery:
    """The answers of the API server. Empty until the leader has asked."""

    session: Session
    permitted: tuple[GangScheduler, ...] = ()
    coscheduling_name: str = COSCHEDULING_SCHEDULER
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _resources: dict[GangScheduler, Resource] = field(default_factory=dict, init=False)

    @property
    def schedulers(self) -> GangSchedulers:
        """The gang schedulers that jobs can have."""
        return GangSchedulers(self.permitted, frozenset(self._resources), self.coscheduling_name)

    def resource(self, scheduler: GangScheduler) -> Resource:
        """Return the kind of the scheduler's PodGroups in this cluster. Of one that is not found: as it would be."""
        return self._resources.get(scheduler) or pod_groups(scheduler)

    async def ask(self) -> None:
        """Find out which of the permitted schedulers the cluster has. Retries until the API server answers."""
        for scheduler in self.permitted:
            for version in range(len(VERSIONS[scheduler])):
                resource = pod_groups(scheduler, version)
                if await self._is_served(resource):
                    self._resources[scheduler] = resource
                    break
            found = self._resources.get(scheduler)
            _LOG.info(f"gang scheduler {scheduler} found={found.api_version if found else 'none'}")

    async def _is_served(self, resource: Resource) -> bool:
        path = f"/apis/{resource.api_version}"
        while True:
            try:
                answer = await self.session.request("GET", path)
            except ApiError as error:
                if error.not_found:
                    return False
                if error.status == HTTPStatus.FORBIDDEN:
                    _LOG.error(
                        f"cannot find gang schedulers: grant the operator's account `get` on {path} error={error}"
                    )
                    return False
                _LOG.warning(f"cannot ask for {resource.qualified}; trying again in {RETRY_SECONDS:.0f} s: {error}")
                await self.sleep(RETRY_SECONDS)
            else:
                return any(each.get("name") == resource.plural for each in answer.get("resources") or ())
