"""The gang schedulers of the cluster that the operator may use, and what a pod template says about schedulers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler

VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"
"""The annotation of a pod that names its PodGroup to Volcano."""
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"
"""The label of a pod that names its PodGroup to the plugin."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
VOLCANO_SCHEDULER: Final = "volcano"
COSCHEDULING_SCHEDULER: Final = "scheduler-plugins-scheduler"
"""The name in the chart of scheduler-plugins."""


@dataclass(frozen=True, slots=True)
class GangSchedulers:
    """The gang schedulers of the cluster."""

    permitted: tuple[GangScheduler, ...] = ()
    """Those that the chart permits, the preferred one first."""
    found: frozenset[GangScheduler] = frozenset()
    """Those of them whose PodGroups the API server has."""
    coscheduling_name: str = COSCHEDULING_SCHEDULER
    """The `schedulerName` of the scheduler with the plugin."""

    @property
    def available(self) -> Sequence[GangScheduler]:
        """Those that jobs can have, the preferred one first."""
        return [each for each in self.permitted if each in self.found]

    def name_of(self, scheduler: GangScheduler) -> str | None:
        """Return the `schedulerName` of the pods; None where it is that of the cluster."""
        names = {GangScheduler.VOLCANO: VOLCANO_SCHEDULER, GangScheduler.COSCHEDULING: self.coscheduling_name}
        return names.get(scheduler)

    def serves(self, scheduler: GangScheduler, template: Mapping[str, Any]) -> bool:
        """Return whether the scheduler is the one that places pods of this template."""
        own = template["spec"].get("schedulerName")
        return own is None or own == (self.name_of(scheduler) or DEFAULT_SCHEDULER)


@dataclass(frozen=True, slots=True)
class GangDecision:
    """The gang of a group whose pods are about to be created. `plan` decides it once."""

    pod_group: PodGroup | None = None
    """The PodGroup that it gets; None where it has one already, or needs none."""
    outdated: bool = False
    """Whether the PodGroup that it has must be replaced: it is of another size."""
    unavailable_because: str = ""
    """Why it cannot get the gang scheduler that the job names, and the fix; empty where it gets it."""


NO_GANG: Final = GangDecision()
NO_GANG_SCHEDULERS: Final = GangSchedulers()


def own_group(template: Mapping[str, Any]) -> str:
    """Return the field of a pod template in which the user names a group; empty where there is none."""
    metadata = template.get("metadata") or {}
    if template["spec"].get("schedulingGroup"):
        return "spec.schedulingGroup"
    if VOLCANO_GROUP in (metadata.get("annotations") or {}):
        return f"the annotation {VOLCANO_GROUP}"
    if COSCHEDULING_GROUP in (metadata.get("labels") or {}):
        return f"the label {COSCHEDULING_GROUP}"
    return ""
