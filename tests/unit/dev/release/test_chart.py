"""The chart names the released image by digest, and is else the chart of the repository."""

from __future__ import annotations

import pytest
import yaml

from dev.release.chart import ABOUT, CHART, with_image
from dev.release.commands import ReleaseError
from dev.release.plan import Artifact

OPERATOR = Artifact("operator", "registry.example.com/trainyard/operator", f"sha256:{'ab' * 32}")
VALUES = (CHART / "values.yaml").read_text()


def test_the_image_is_filled_in() -> None:
    image = yaml.safe_load(with_image(VALUES, OPERATOR))["image"]
    assert (image["repository"], image["digest"]) == (OPERATOR.repository, OPERATOR.digest)


def test_all_else_stays() -> None:
    before, after = yaml.safe_load(VALUES), yaml.safe_load(with_image(VALUES, OPERATOR))
    for values in (before, after):
        del values["image"]["repository"], values["image"]["digest"]
    assert after == before


def test_comment_describes_the_published_image() -> None:
    lines = with_image(VALUES, OPERATOR).splitlines()
    changed = [line for line in lines if line not in VALUES.splitlines()]
    assert changed == [
        f"  # -- {ABOUT}",
        f"  repository: {OPERATOR.repository}",
        f"  digest: {OPERATOR.digest}",
    ]


@pytest.mark.parametrize(
    "values",
    ["{}\n", "image:\n  repository: x\n", "image: {repository: x, digest: y}\n", "agent:\n  digest: x\n"],
)
def test_values_of_another_form(values: str) -> None:
    with pytest.raises(ReleaseError, match=r"no image\.repository or no image\.digest"):
        with_image(values, OPERATOR)
