"""All processes of a training, to exchange words: over gloo, so that nobody waits for a device. One thread uses one of these."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from trainyard_torch.parting import destroy
from trainyard_torch.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class FailedElsewhereError(Exception):
    """A process could not do its part; the text is what it said, with its rank.

    Attributes:
        kinds: the names of the classes of what was raised.
    """

    def __init__(self, text: str, kinds: set[str]) -> None:
        super().__init__(text)
        self.kinds = kinds


class Ranks:
    """The processes of the default group, or this one alone where there is none. To be made by all of them at the same time.

    Args:
        timeout: seconds for which they wait for each other; by default torch's half an hour.
        borrow: whether to use the default group itself, where that is of gloo: for a few words in the thread that trains. A group of their
            own stays until the program ends, as torch's destructor may wait for ever.

    Attributes:
        rank: from 0 on.
        world: how many there are.
        group: what torch.distributed.checkpoint takes; None where there is no other process.
    """

    def __init__(self, timeout: float | None = None, *, borrow: bool = False) -> None:
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        self.rank = 0 if alone else dist.get_rank()
        self.world = 1 if alone else dist.get_world_size()
        lent = not alone and borrow and "cpu:gloo" in dist.get_backend_config()
        bound = None if timeout is None else timedelta(seconds=timeout)
        self.group = None if alone else dist.group.WORLD if lent else dist.new_group(backend="gloo", timeout=bound)
        self._told: tuple[Any, torch.Tensor] | None = None
        self._wish = 0
        """What one alone has told itself."""
        self._throttle = Throttle()

    def gather(self, word: T) -> list[T]:
        """The words of all, by rank; everybody has to say one."""
        if self.group is None:
            return [word]
        words: list[Any] = [None] * self.world
        dist.all_gather_object(words, word, group=self.group)
        return words

    def first(self, act: Callable[[], T]) -> T:
        """What rank 0 found when it did this, alone.

        Raises:
            Exception: rank 0 raised it: the same one on all.
        """
        found: T | None = None
        wrong: Exception | None = None
        if self.rank == 0:
            try:
                found = act()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others wait for a word
                wrong = error
        answer = [found, wrong]
        if self.group is not None:
            dist.broadcast_object_list(answer, src=0, group=self.group)
        found, wrong = cast("tuple[T, Exception | None]", answer)
        if wrong is not None:
            raise wrong
        return found

    def each(self, act: Callable[[], T]) -> list[T]:
        """What all of them found when each did this, by rank.

        Raises:
            FailedElsewhereError: it failed somewhere: the same words on all. `kinds` says by what.
        """
        found: T | None = None
        kind, wrong = "", ""
        try:
            found = act()
        except Exception as error:  # noqa: BLE001 - as above
            kind, wrong = type(error).__name__, f"rank {self.rank}: {str(error) or type(error).__name__}"
        words = self.gather((found, kind, wrong))
        if said := [text for *_, text in words if text]:
            raise FailedElsewhereError("; ".join(said), {kind for _, kind, _ in words if kind})
        return [cast("T", word) for word, *_ in words]

    def tell(self, wish: int) -> None:
        """Begin to tell the others what rank 0 wishes, a number from 0 to 255; nobody waits. To be called by all in each step.

        Where steps are short, most wishes are not told: then the next one is.
        """
        if self.group is not None and not self._throttle.due():
            return
        if self.group is None:
            self._wish = wish
            return
        told = torch.tensor([wish, self._throttle.wish()], dtype=torch.uint8)
        self._told = dist.broadcast(told, src=0, group=self.group, async_op=True), told

    def told(self) -> int:
        """What rank 0 wished when `tell` was called last; 0 where it was not, or the wish was not told."""
        if self._told is None:
            wish, self._wish = self._wish, 0
            return wish
        (work, told), self._told = self._told, None
        work.wait()
        self._throttle.agree(int(told[1]))
        return int(told[0])

    def close(self) -> None:
        """Give the group up, in this process: none of its threads uses it any more."""
        if self.group is not None:
            destroy(self.group)
