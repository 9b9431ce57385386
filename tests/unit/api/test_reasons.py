"""Reasons are part of the API: programs rely on the words, people on what stands beside them."""

import re

import pytest

from trainyard.api.reasons import Reason
from trainyard.api.reference import reasons_page
from trainyard.api.remedies import NOTHING, REMEDIES


def test_every_reason_is_one_camel_case_word() -> None:
    assert [reason for reason in Reason if not re.fullmatch(r"[A-Z][A-Za-z]+", reason)] == []


def test_every_reason_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| [A-Z`].+\. \| [A-Z].+\. \|$", reasons_page(), re.MULTILINE)
    assert explained == list(Reason)


def test_every_reason_has_a_remedy() -> None:
    assert [reason for reason in Reason if reason not in REMEDIES] == []


@pytest.mark.parametrize("reason", Reason)
def test_remedy_is_at_most_two_sentences(reason: Reason) -> None:
    sentences = re.split(r"(?<=\.) (?=[A-Z`])", REMEDIES[reason])
    assert 1 <= len(sentences) <= 2
    assert all(sentence.endswith(".") for sentence in sentences)


@pytest.mark.parametrize("word", ["Failed", "Exceeded", "Exhausted", "Forbidden", "Denied", "Invalid", "Conflict"])
def test_remedy_of_a_problem_asks_for_action(word: str) -> None:
    problems = [reason for reason in Reason if word in reason]
    assert problems
    assert [reason for reason in problems if REMEDIES[reason].startswith(NOTHING)] == []
