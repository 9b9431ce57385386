"""Plan which rank writes which part of a checkpoint, and reuse the plan as long as no rank's state has another layout.

torch 2.6 has no cache of plans. The cache of later releases keeps the plans of all ranks on rank 0. A save that fails on one rank leaves the
ranks with different caches there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.checkpoint.metadata import Metadata


class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]  # torch is there where this runs
    """torch's planner, which may be used for several checkpoints. After a failure, all ranks take a new one.

    Each rank keeps its own plan, and rank 0 the metadata. If nothing has changed, the ranks exchange empty plans.

    Attributes:
        reuse: whether all ranks reuse their plans. Set it on all of them, to whether `unchanged` was true on all.
    """

    def __init__(self) -> None:
        # Of replicated entries rank 0's is stored as a whole: a mixture of ranks that differ (running means, for example) would be no rank's state.
        super().__init__(dedup_save_to_lowest_rank=True)
        self.reuse = False
        self._local: SavePlan | None = None
        self._final: SavePlan | None = None
        self._metadata: Metadata | None = None

    def unchanged(self, state: Mapping[str, Any], *, is_coordinator: bool) -> bool:
        """Return whether the last plan fits this state: the same entries with the same types, sizes and parts."""
        self.set_up_planner(dict(state), is_coordinator=is_coordinator)
        local = super().create_local_plan()
        fits = self._final is not None and local == self._local
        self._local = local
        return fits

    @override
    def create_local_plan(self) -> SavePlan:
        if not self.reuse:
            self._local = super().create_local_plan()
            return self._local
        return SavePlan([])

    @override
    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        if self.reuse and self._metadata is not None:
            # The writer puts the places of this checkpoint into it.
            return all_plans, replace(self._metadata)
        plans, metadata = super().create_global_plan(all_plans)
        self._metadata = replace(metadata)
        return plans, metadata

    @override
    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        if self.reuse and self._final is not None:
            # The writer has put the prefix of this rank's files into it.
            self.plan = replace(self._final, storage_data=new_plan.storage_data)
        else:
            self.plan = self._final = new_plan
        return self.plan

    def release(self) -> None:
        """Drop the reference to the last state: its memory is needed for the next one."""
        self.state_dict: dict[str, Any] = {}
