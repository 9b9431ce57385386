"""Each kind of violation is planted in a tree and must be found, with its line."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from dev.wordlint.__main__ import main

WORDS = """
[limits]
sentence_words = 10
test_name_words = 4

[checked]
identifiers = ["code", "chart"]
texts = ["code", "docs", "chart"]
sentences = ["docs", "chart", "code"]
docstrings = ["library"]
test_names = ["tests"]
test_imports = ["tests"]

[[words]]
avoid = ["wish", "common end"]
use = "desired"
scope = ["identifiers", "texts"]

[[words]]
avoid = [", say"]
use = "for example"
scope = ["texts"]

[[exceptions]]
word = "wish"
path = "docs/glossary.md"
reason = "explains the old word"
"""
LONG = "one two three four five six seven eight nine ten eleven"


@dataclass
class Tree:
    """A folder with files that are checked by the words above."""

    root: Path
    capture: pytest.CaptureFixture[str]

    def plant(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def lint(self, *arguments: str, words: str = WORDS) -> tuple[int, str]:
        (self.root / "words.toml").write_text(words)
        code = main(["--root", str(self.root), "--words", str(self.root / "words.toml"), *arguments])
        return code, "".join(self.capture.readouterr())


@pytest.fixture
def tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tree:
    return Tree(tmp_path, capsys)


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("code/a.py", "def take_wish() -> None: ...\n", 'code/a.py:1: "wish" in the name take_wish: write desired'),
        ("code/a.py", "class WishList: ...\n", "in the name WishList"),
        ("code/a.py", "def f(wish: int) -> None: ...\n", "in the name wish"),
        ("code/a.py", "x = 1\nx.wish = 2\n", "code/a.py:2:"),
        ("code/a.py", "common_end = 1\n", '"common end" in the name common_end'),
        ("code/a.py", 'reason = "WishGranted"\n', "in the name WishGranted"),
        ("code/a.py", 'Counter("trainyard_wishes_total")\nCounter("a_wish_total")\n', "in the name a_wish_total"),
        ("chart/rules.yaml", "- alert: NoWish\n", "chart/rules.yaml:1:"),
        ("chart/values.yaml", "a: 1\nwishTimeout: 3\n", "chart/values.yaml:2:"),
        ("code/wish.py", "", 'code/wish.py:1: "wish" in the name wish'),
        ("code/a.py", '"""The wish of a user."""\n', 'code/a.py:1: "wish": write desired'),
        ("code/a.py", "x = 1\n# the wish of a user\n", "code/a.py:2:"),
        ("code/a.py", 'log("the wish changed")\n', "code/a.py:1:"),
        ("code/a.py", 'log(f"the wish of {name}")\n', "code/a.py:1:"),
        ("code/a.py", f'Counter("a_total", "{LONG}")\n', "a sentence of 11 words, at most 10"),
        ("library/a.py", f'"""Short. O{LONG[1:]}."""\n', "library/a.py:1: a sentence of 11 words"),
        ("library/a.py", f'def f():\n    """Return it.\n\n    Args:\n        a: {LONG}.\n    """\n', "library/a.py:2:"),
        ("docs/a.md", "# Title\n\nIt has four, say, of them.\n", 'docs/a.md:3: ", say"'),
        ("docs/a.md", f"# Title\n\nShort. O{LONG[1:]}.\n", "docs/a.md:3: a sentence of 11 words"),
        ("docs/a.md", "| a | b |\n|---|---|\n| x | the wish |\n", "docs/a.md:3:"),
        ("chart/values.yaml", f"# -- {LONG}\na: 1\n", "chart/values.yaml:1: a sentence of 11 words"),
        ("chart/a.yaml", f"a:\n  description: {LONG}\n", "chart/a.yaml:2: a sentence of 11 words"),
        ("chart/a.yaml", "a:\n  summary: A wish.\n", "chart/a.yaml:2:"),
        ("chart/templates/a.yaml", "a: 1\n{{- if .x }}\n# the wish\n{{- end }}\n", "chart/templates/a.yaml:3:"),
        ("chart/templates/_a.tpl", "{{- /* the wish */}}\n", "chart/templates/_a.tpl:1:"),
        ("tests/test_a.py", "def test_one_two_three_four_five() -> None: ...\n", "a test name of 5 words, at most 4"),
        ("tests/test_a.py", "from tests.test_b import x\n", "imports the test module tests.test_b"),
        ("tests/test_a.py", "from tests import test_b\n", "imports the test module tests.test_b"),
    ],
)
def test_planted_violations_are_found(tree: Tree, path: str, text: str, found: str) -> None:
    tree.plant(path, text)
    code, output = tree.lint()
    assert (code, len(output.splitlines())) == (1, 1), output
    assert found in output


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("code/a.py", "wishbone = swish = 1\n"),
        ("code/a.py", 'x = "wish"\n'),
        ("code/a.py", 'log("set `wish` first")\n'),
        ("code/a.py", f'"""{LONG} twelve."""\n'),
        ("docs/a.md", f"```yaml\nwish: {LONG}\n```\n\n`wish`\n"),
        ("docs/a.md", f"| {LONG} |\n|---|\n"),
        ("docs/a.md", "- one two three four five six\n- seven eight nine ten eleven\n"),
        ("docs/a.md", "One two **three four five six.** Seven eight nine. `a` ten eleven twelve.\n"),
        ("docs/glossary.md", "Wish is an old word.\n"),
        ("elsewhere/a.py", "wish = 1\n"),
        ("tests/test_a.py", "from tests.support.jobs import job\n"),
    ],
)
def test_everything_else_passes(tree: Tree, path: str, text: str) -> None:
    tree.plant(path, text)
    assert tree.lint() == (0, "")


def test_a_summary_counts_all_folders(tree: Tree) -> None:
    tree.plant("elsewhere/a.py", "wish = 1\n")
    tree.plant("docs/a.md", "A wish.\n")
    code, output = tree.lint("--summary")
    assert code == 0
    assert [line.split() for line in output.splitlines()[1:]] == [
        ["docs", "0", "1", "0", "0", "0", "0"],
        ["elsewhere", "1", "0", "0", "0", "0", "0"],
        ["all", "1", "1", "0", "0", "0", "0"],
    ]


def test_an_exception_needs_a_reason(tree: Tree) -> None:
    code, output = tree.lint(words=WORDS.replace("explains the old word", " "))
    assert code == 2
    assert "needs a reason" in output


def test_a_word_needs_a_replacement(tree: Tree) -> None:
    assert tree.lint(words=WORDS.replace('use = "desired"', 'use = ""'))[0] == 2
