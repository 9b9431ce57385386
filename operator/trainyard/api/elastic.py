"""`spec.elastic`: the sizes that a group may have, and how fast it follows the capacity of the cluster."""

from typing import Annotated, Final

from pydantic import ConfigDict, Field

from trainyard.api.base import Model, rule
from trainyard.api.constants import MAX_REPLICAS
from trainyard.api.recovery import DAY

DEFAULT_RESIZE_DELAY_SECONDS: Final = 60
MAX_SIZES: Final = 64

LOWEST = "(has(self.minReplicas) ? self.minReplicas : self.multipleOf)"
HIGHEST = "(has(self.sizes) ? self.sizes[self.sizes.size() - 1] : has(self.maxReplicas) ? self.maxReplicas : self.onDemandReplicas)"

SAME_SIZES = (
    "has(self.elastic.sizes) == has(oldSelf.value().elastic.sizes)"
    " && (!has(self.elastic.sizes) || self.elastic.sizes == oldSelf.value().elastic.sizes)"
    " && self.elastic.?minReplicas.orValue(0) == oldSelf.value().elastic.?minReplicas.orValue(0)"
    " && self.elastic.?maxReplicas.orValue(0) == oldSelf.value().elastic.?maxReplicas.orValue(0)"
)
"""0: not set."""
SCALED = (
    "oldSelf.hasValue() && has(self.elastic) && has(oldSelf.value().elastic)"
    f" && self.elastic.multipleOf == oldSelf.value().elastic.multipleOf && {SAME_SIZES}"
    " && has(self.parallelism) == has(oldSelf.value().parallelism)"
    " && (!has(self.parallelism) || self.parallelism == oldSelf.value().parallelism)"
    " && self.processesPerReplica == oldSelf.value().processesPerReplica"
)
"""An elastic job of which neither the sizes nor the layout of the model changed, but for example `replicas`. An autoscaler knows only
bounds: a number between them is no error, and the group gets the next smaller size."""


class Elastic(Model):
    """The sizes that the group may have, and when it is resized automatically."""

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
    """The smallest number of workers. Default: the value of multipleOf."""
    max_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    """The largest number of workers."""
    multiple_of: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    """The sizes between minReplicas and maxReplicas must be multiples of this."""
    sizes: list[Annotated[int, Field(ge=1, le=MAX_REPLICAS)]] | None = Field(
        default=None, min_length=1, max_length=MAX_SIZES, json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    """All allowed sizes, the smallest first. Replaces minReplicas, maxReplicas and multipleOf."""
    shrink_after_seconds: int = Field(default=DEFAULT_RESIZE_DELAY_SECONDS, ge=0, le=DAY)
    """Seconds to wait for unschedulable workers. Then the job continues with the largest allowed size that fits the cluster. It grows again
    when there is capacity. Needs the agent."""
    grow_after_seconds: int = Field(default=DEFAULT_RESIZE_DELAY_SECONDS, ge=5, le=DAY)
    """Seconds for which the group keeps a size before it grows. Requests during this time are combined into one change."""
    stop_timeout_seconds: int | None = Field(default=None, ge=2, le=DAY)
    """Seconds that the ranks may take for a checkpoint before a resize. Not set: the termination grace period of the pod
    (terminationGracePeriodSeconds)."""

    on_demand_replicas: int | None = Field(default=None, ge=0, le=MAX_REPLICAS)
    """The number of workers that never run on spot (preemptible) nodes: those with the lowest indexes. The other workers prefer spot
    nodes, and are removed first when the group shrinks. Not set: only the template decides."""

    @property
    def lowest(self) -> int:
        """The smallest size."""
        return self.sizes[0] if self.sizes else self.min_replicas or self.multiple_of

    @property
    def highest(self) -> int:
        """The largest size."""
        return self.sizes[-1] if self.sizes else self.max_replicas or MAX_REPLICAS
