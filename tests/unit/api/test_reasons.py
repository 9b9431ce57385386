"""Reasons are part of the API: programs rely on the words, people on what stands beside them."""

import re

from trainyard.api.reasons import Reason
from trainyard.api.reference import reasons_page


def test_every_reason_is_one_camel_case_word() -> None:
    assert [reason for reason in Reason if not re.fullmatch(r"[A-Z][A-Za-z]+", reason)] == []


def test_every_reason_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [A-Z`].+\. \|$", reasons_page(), re.MULTILINE)
    assert explained == list(Reason)
