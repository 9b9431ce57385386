"""Check names and public texts against dev/wordlint/words.toml. Exits with 1 where one breaks a rule."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dev.wordlint.check import summary, violations
from dev.wordlint.wordlist import WordListError, read

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, 1 with violations, or 2 where the word list is wrong."""
    parser = argparse.ArgumentParser(prog="python -m dev.wordlint", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to check (default: this repository)")
    parser.add_argument("--words", type=Path, default=Path(__file__).parent / "words.toml", help="the word list")
    parser.add_argument("--everywhere", action="store_true", help="check all folders, not only those listed as checked")
    parser.add_argument("--summary", action="store_true", help="print counts a folder, of all folders, and exit with 0")
    parser.add_argument("--depth", type=int, default=3, help="parts of a path in the summary (default: 3)")
    options = parser.parse_args(arguments)
    try:
        words = read(options.words)
    except WordListError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    found = list(violations(options.root, words, everywhere=options.everywhere or options.summary))
    if options.summary:
        sys.stdout.write(summary(found, options.depth) + "\n")
        return 0
    sys.stdout.writelines(f"{violation}\n" for violation in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
