"""Check the files of a tree against the word list."""

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from dev.wordlint import identifiers
from dev.wordlint.texts import Text, count, docstrings, sentences, texts
from dev.wordlint.wordlist import Rule, WordList, is_below

SUFFIXES = {".py", ".md", ".yaml", ".yml", ".tpl", ".txt"}


@dataclass(frozen=True, slots=True)
class Violation:
    """One word, sentence, name or import that breaks a rule."""

    rule: Rule
    path: str
    line: int
    message: str

    @override
    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def files(root: Path, skipped: tuple[str, ...] = ()) -> list[str]:
    """Return the files with texts or names below a folder, without hidden folders and those that are skipped."""
    found = []
    for folder, folders, names in os.walk(root):
        base = Path(folder).relative_to(root).as_posix()
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for name in sorted(names):
            path = name if base == "." else f"{base}/{name}"
            if Path(name).suffix in SUFFIXES and not any(is_below(path, entry) for entry in skipped):
                found.append(path)
    return found


def violations(root: Path, words: WordList, *, everywhere: bool = False) -> Iterator[Violation]:
    """Yield what breaks the rules in the checked folders, or in all of them."""
    for path in files(root, tuple(words.skipped)):
        rules = [rule for rule in Rule if everywhere or words.checks(rule, path)]
        if rules:
            source = (root / path).read_text()
            yield from (found for found in of_file(path, source, words) if found.rule in rules)


def of_file(path: str, source: str, words: WordList) -> Iterator[Violation]:
    """Yield what breaks any rule in one file."""
    if path.endswith(".py"):
        tree = ast.parse(source)
        names = [(1, name) for name in identifiers.of_module(path)]
        yield from _names(path, [*names, *identifiers.bound(tree), *identifiers.in_strings(tree)], words)
        yield from _tests(path, tree, words)
        for text in docstrings(tree):
            yield from _long(Rule.DOCSTRINGS, path, text, words)
    elif path.endswith((".yaml", ".yml")):
        yield from _names(path, identifiers.in_yaml(source), words)
    for text in texts(path, source):
        for word in words.found(Rule.TEXTS, text.text):
            if not words.allows(word.avoid, path):
                yield Violation(Rule.TEXTS, path, text.line, f'"{word.avoid}": write {word.use}')
        yield from _long(Rule.SENTENCES, path, text, words)


def _long(rule: Rule, path: str, text: Text, words: WordList) -> Iterator[Violation]:
    """Yield the sentences of a limited text that are too long."""
    for sentence in sentences(text) if text.limited else ():
        if (length := count(sentence)) > words.sentence_words:
            limit = f"a sentence of {length} words, at most {words.sentence_words}"
            yield Violation(rule, path, text.line, f"{limit}: {sentence[:70]}…")


def _names(path: str, names: Iterable[tuple[int, str]], words: WordList) -> Iterator[Violation]:
    for line, name in names:
        for word in words.found(Rule.IDENTIFIERS, " ".join(identifiers.split(name))):
            if not words.allows(word.avoid, path):
                yield Violation(Rule.IDENTIFIERS, path, line, f'"{word.avoid}" in the name {name}: write {word.use}')


def _tests(path: str, tree: ast.AST, words: WordList) -> Iterator[Violation]:
    if not is_below(path, "tests"):
        return
    for line, name, length in identifiers.test_functions(tree):
        if length > words.test_name_words:
            message = f"a test name of {length} words, at most {words.test_name_words}: {name}"
            yield Violation(Rule.TEST_NAMES, path, line, message)
    for line, name in identifiers.imported_tests(tree):
        message = f"imports the test module {name}: shared code belongs in tests/support"
        yield Violation(Rule.TEST_IMPORTS, path, line, message)


def summary(found: list[Violation], depth: int) -> str:
    """Return a table of counts: one row a folder, one column a rule."""
    counts = Counter(("/".join(Path(entry.path).parts[:-1][:depth]) or ".", entry.rule) for entry in found)
    folders = sorted({folder for folder, _ in counts})
    width = max([len("folder"), *map(len, folders)])
    rows: list[tuple[str, list[str]]] = [("folder", list(map(str, Rule)))]
    rows += [(folder, [str(counts[folder, rule]) for rule in Rule]) for folder in folders]
    rows.append(("all", [str(sum(entry.rule is rule for entry in found)) for rule in Rule]))
    return "\n".join(f"{name:{width}}  " + "  ".join(f"{cell:>12}" for cell in cells) for name, cells in rows)
