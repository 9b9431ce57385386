"""How large the task is. Pure: read where there is no torch, too."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Size:
    """Of the task.

    Attributes:
        share: samples of a step that each process has.
        samples: in the data set.
        side: of a picture, in pixels.
        print_every: steps from one line of a program that is measured to the next: about half a second.
    """

    share: int
    samples: int
    side: int
    print_every: int


SIZES: Final = {
    "usual": Size(share=32, samples=4096, side=32, print_every=15),
    "tiny": Size(share=16, samples=8192, side=8, print_every=300),
}
