"""`spec.elastic`: the sizes that a group may have, and how patiently it follows what the cluster has room for."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from trainyard.api.base import Model, rule
from trainyard.api.constants import MAX_REPLICAS
from trainyard.api.recovery import DAY

USUAL_SECONDS: Final = 60
MOST_SIZES: Final = 64

LOWEST = "(has(self.minReplicas) ? self.minReplicas : self.multipleOf)"
HIGHEST = "(has(self.sizes) ? self.sizes[self.sizes.size() - 1] : has(self.maxReplicas) ? self.maxReplicas : self.onDemandReplicas)"


class Elastic(Model):
    """Between which sizes the group may change, and when it does so by itself."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "has(self.sizes) != has(self.maxReplicas)",
                    "elastic must name the sizes that the group may have: give either maxReplicas, with minReplicas and multipleOf,"
                    " or the list sizes",
                ),
                rule(
                    "!has(self.sizes) || (!has(self.minReplicas) && self.multipleOf == 1)",
                    "elastic.sizes names every size by itself; leave out minReplicas and multipleOf",
                    fieldPath=".sizes",
                ),
                rule(
                    "!has(self.sizes) || self.sizes.isSorted()",
                    "elastic.sizes must be sorted, the smallest first",
                    fieldPath=".sizes",
                ),
                rule(
                    f"!has(self.maxReplicas) || {LOWEST} <= self.maxReplicas",
                    "elastic.maxReplicas must not be smaller than elastic.minReplicas, nor than elastic.multipleOf",
                    fieldPath=".maxReplicas",
                ),
                rule(
                    "!has(self.minReplicas) || self.minReplicas % self.multipleOf == 0",
                    "elastic.minReplicas must be a multiple of elastic.multipleOf",
                    fieldPath=".minReplicas",
                ),
                rule(
                    "!has(self.maxReplicas) || self.maxReplicas % self.multipleOf == 0",
                    "elastic.maxReplicas must be a multiple of elastic.multipleOf",
                    fieldPath=".maxReplicas",
                ),
                rule(
                    f"!has(self.onDemandReplicas) || self.onDemandReplicas <= {HIGHEST}",
                    "elastic.onDemandReplicas must not be larger than the largest size",
                    fieldPath=".onDemandReplicas",
                ),
            ],
        },
    )

    min_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The fewest workers with which the job trains. Not set: multipleOf."""
    max_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The most."""
    multiple_of: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """Only sizes between them that are a multiple of this."""
    sizes: list[Annotated[int, Field(ge=1, le=MAX_REPLICAS)]] | None = Field(
        default=None, min_length=1, max_length=MOST_SIZES, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """In place of these: every size that the group may have, the smallest first."""
    shrink_after_seconds: int = Field(default=USUAL_SECONDS, ge=0, le=DAY)
    """How long workers for which the cluster has no room are waited for. Then the job goes on with as many as it has, at the largest
    size that it may have, and grows again when there is room. Needs the agent."""
    grow_after_seconds: int = Field(default=USUAL_SECONDS, ge=5, le=DAY)
    """How long the group keeps a size before it grows: what is wished for meanwhile becomes one change."""
    stop_timeout_seconds: int | None = Field(default=None, ge=2, le=DAY)
    """How long the ranks may take for a checkpoint before they start anew in another number. Not set: as long as a pod has to end
    (terminationGracePeriodSeconds)."""

    on_demand_replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """How many workers, those with the lowest numbers, never run on spot (preemptible) nodes, which their providers take back at short
    notice. The others go to such nodes first, and are the first to go when the group gets smaller. Not set: the template alone decides."""

    @property
    def lowest(self) -> int:
        """The smallest size."""
        return self.sizes[0] if self.sizes else self.min_replicas or self.multiple_of

    @property
    def highest(self) -> int:
        """The largest one."""
        return self.sizes[-1] if self.sizes else self.max_replicas or MAX_REPLICAS
