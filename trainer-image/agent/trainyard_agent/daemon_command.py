"""Understand the command by which an MPI launcher starts its daemon on another host. Pure.

ssh would give it to a shell. No shell runs here: the command is a list of assignments, and the program of a daemon. Open MPI writes one
string, with `export` before the program (PRRTE, `plm_ssh_module.c`); Hydra of MPICH and Intel MPI passes words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from posixpath import basename
from typing import NamedTuple

DAEMONS = frozenset({"prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy"})
"""The daemons of Open MPI 5 and 4, of MPICH, and of Intel MPI."""
DETACHING = frozenset({"--daemonize"})
"""Options by which a daemon would leave the agent that watches it."""
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
PROFILE = re.compile(r"\(\s*test ! -r \./\.profile \|\| \. \./\.profile;(.*)\)\s*", re.DOTALL)
"""How Open MPI begins where it does not know the user's shell. A container has no profile for programs."""
SEPARATORS = frozenset(";&")
SHELL_CHARACTERS = "();<>|&`"


class DaemonCommand(NamedTuple):
    """A daemon, and what its environment gets."""

    words: Sequence[str]
    variables: Mapping[str, str]


class CommandError(Exception):
    """The command is none that the agent starts; the message says why."""


def parse_command(given: Sequence[str], environment: Mapping[str, str]) -> DaemonCommand:
    """Return the daemon that a launcher asks for. Raises CommandError.

    `given`: the words after the host, which ssh would join with blanks. `environment`: what references such as $PATH name.
    """
    variables = dict[str, str]()
    text = " ".join(given)
    profile = PROFILE.fullmatch(text)
    commands = _commands(profile[1] if profile else text)
    for words in commands[:-1]:
        _assign(words, {**environment, **variables}, variables)
    words = _assign(commands[-1], {**environment, **variables}, variables) if commands else []
    program = basename(words[0]) if words else ""
    if program not in DAEMONS:
        raise CommandError(
            f"agents start only daemons of MPI ({', '.join(sorted(DAEMONS))}), and not {program or 'nothing'}"
        )
    return DaemonCommand([word for word in words if word not in DETACHING], variables)


def _commands(text: str) -> list[list[str]]:
    """Return the commands of a line, one after the other."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=SHELL_CHARACTERS)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        parts = list(lexer)
    except ValueError as error:
        raise CommandError(f"the command cannot be read: {error}") from error
    commands: list[list[str]] = [[]]
    for part in parts:
        if SEPARATORS.issuperset(part):
            commands.append([])
        elif part.strip(SHELL_CHARACTERS):
            commands[-1].append(part)
        else:
            raise CommandError(f"the command needs a shell, for {part[:16]}")
    return [command for command in commands if command]


def _assign(words: Sequence[str], known: Mapping[str, str], variables: dict[str, str]) -> list[str]:
    """Add the assignments at the begin of a command, and return the words after them."""
    rest = list(words)
    if rest[:1] == ["export"]:
        rest = rest[1:]
        for word in rest:
            if not (ASSIGNMENT.fullmatch(word) or word.isidentifier()):
                raise CommandError(f"the command exports {word[:64]!r}, which is no variable")
        rest = [word for word in rest if ASSIGNMENT.fullmatch(word)]
    while rest and (found := ASSIGNMENT.fullmatch(rest[0])):
        variables[found[1]] = REFERENCE.sub(lambda each: known.get(each[1] or each[2], ""), found[2])
        rest = rest[1:]
    return rest
