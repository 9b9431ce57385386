"""The number of workers of a group: what the user requests, what is allowed, and what the group has and gets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The size of a job's group at one moment, in workers. `plan` computes it once."""

    requested: int
    """`spec.replicas`."""
    allowed: int
    """The size that the job may have and that is nearest to `requested`: elastic and parallelism exclude others."""
    current: int
    """The size for which the current attempt was created."""
    desired: int
    """The size that the group must have now. Where `current` is another one, the group is resized."""
    target: int
    """The size once the joining workers are ready. It equals `current` while no worker may join yet."""
    created_for: tuple[int, ...] = ()
    """The sizes for which the current attempt, or each of its pods, was created; 0: its annotation was removed by hand."""
    limited_because: str = ""
    """Why the group has an allowed size in place of the requested one; empty where it has the requested one."""
    invalid_because: str = ""
    """Why the requested size cannot be followed at all; empty where it can."""

    @classmethod
    def following(cls, requested: int, created_for: tuple[int, ...] = ()) -> "GroupSize":
        """Return the size of a group that gets all workers that are requested, at once."""
        current = next(filter(None, created_for), requested)
        return cls(requested, requested, current, desired=requested, target=requested, created_for=created_for)

    @property
    def scale_up_pending(self) -> bool:
        """Whether the group keeps its size until more workers are ready to join."""
        return self.desired == self.current < self.allowed

    @property
    def resized_from(self) -> int | None:
        """The size from which the group has to be resized to `desired`; None where it has that size."""
        return next((size for size in self.created_for if size not in {0, self.desired}), None)
