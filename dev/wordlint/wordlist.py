"""The data of the lint: words, limits, checked folders and exceptions, read from a TOML file."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path


class Rule(StrEnum):
    """What is checked. Each has its own list of folders."""

    IDENTIFIERS = "identifiers"
    TEXTS = "texts"
    SENTENCES = "sentences"
    DOCSTRINGS = "docstrings"
    TEST_NAMES = "test_names"
    TEST_IMPORTS = "test_imports"


class WordListError(Exception):
    """The word list cannot be used."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word or phrase to avoid."""

    avoid: str
    use: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Exemption:
    """A word that may stand in the files of a pattern, with the reason. `*` is every word."""

    word: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class WordList:
    """All of the data."""

    words: dict[Rule, Sequence[Word]]
    sentence_words: int
    test_name_words: int
    checked: dict[Rule, Sequence[str]]
    skipped: Sequence[str]
    exceptions: Sequence[Exemption]

    def checks(self, rule: Rule, path: str) -> bool:
        """Whether a rule holds for a file."""
        return any(is_below(path, folder) for folder in self.checked[rule])

    def allows(self, word: str, path: str) -> bool:
        """Whether an exception lets a word stand in a file."""
        return any(entry.word in {"*", word} and fnmatch(path, entry.path) for entry in self.exceptions)

    def found(self, rule: Rule, text: str) -> list[Word]:
        """Return the words to avoid that a text has."""
        return [word for word in self.words[rule] if word.pattern.search(text)]


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder or file, or in it. `.` holds everything."""
    return folder in {".", path} or path.startswith(folder + "/")


def read(path: Path) -> WordList:
    """Return the data of a TOML file.

    Raises:
        WordListError: A word has nothing to use instead, an exception no reason, or a scope is unknown.
    """
    data = tomllib.loads(path.read_text())
    words: dict[Rule, list[Word]] = {rule: [] for rule in Rule}
    for entry in data["words"]:
        if not entry.get("use") or not set(entry["scope"]) <= {Rule.IDENTIFIERS, Rule.TEXTS}:
            raise WordListError(f"{path}: {entry['avoid']} needs `use`, and a scope of identifiers or texts")
        for scope in entry["scope"]:
            words[Rule(scope)] += [Word(phrase, entry["use"], pattern(phrase)) for phrase in entry["avoid"]]
    exceptions = [Exemption(**entry) for entry in data.get("exceptions", [])]
    for exception in exceptions:
        if not exception.reason.strip():
            raise WordListError(f"{path}: the exception for {exception.word} in {exception.path} needs a reason")
    return WordList(
        words=dict(words),
        sentence_words=data["limits"]["sentence_words"],
        test_name_words=data["limits"]["test_name_words"],
        checked={rule: data["checked"].get(rule, []) for rule in Rule},
        skipped=data.get("skipped", {}).get("paths", []),
        exceptions=exceptions,
    )


def pattern(phrase: str) -> re.Pattern[str]:
    """Return the pattern of a phrase: whole words, in either case, over any white space."""
    body = r"\s+".join(re.escape(part) for part in phrase.split())
    start = r"(?<![\w-])" if phrase[0].isalnum() else ""
    return re.compile(rf"{start}{body}(?![\w-])", re.IGNORECASE)
