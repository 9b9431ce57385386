"""The commands by which MPI launchers start their daemons, as recorded from Open MPI 5.0.7 and MPICH 4."""

import pytest

from trainyard_agent.daemon_command import CommandError, parse_command

EXPORTS = "PRTE_PREFIX=/usr;export PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;/usr/bin/prted"
OPTIONS = ["--prtemca", "ess", '"env"', "--prtemca", "prte_hnp_uri", '"a@0.0;tcp://10.0.0.1:54743:24"']
WORDS = ["/usr/bin/prted", "--prtemca", "ess", "env", "--prtemca", "prte_hnp_uri", "a@0.0;tcp://10.0.0.1:54743:24"]
VARIABLES = {"PRTE_PREFIX": "/usr", "LD_LIBRARY_PATH": "/usr/lib:/opt"}


@pytest.mark.parametrize(
    ("given", "words", "variables"),
    [
        ([EXPORTS, *OPTIONS], WORDS, VARIABLES),
        (
            ["(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;", EXPORTS, *OPTIONS, ")"],
            WORDS,
            VARIABLES,
        ),
        ([" ".join(["export A=${LD_LIBRARY_PATH}:x; orted", *OPTIONS[:2]])], ["orted", *OPTIONS[:2]], {"A": "/opt:x"}),
        (["/usr/bin/prted", "--daemonize", "--debug"], ["/usr/bin/prted", "--debug"], {}),
        (
            ['"/opt/mpich/bin/hydra_pmi_proxy"', "--control-port", "w-0:4711"],
            ["/opt/mpich/bin/hydra_pmi_proxy", "--control-port", "w-0:4711"],
            {},
        ),
        (["hydra_bstrap_proxy", "--upstream-host", "w-0"], ["hydra_bstrap_proxy", "--upstream-host", "w-0"], {}),
    ],
)
def test_daemon_is_understood(given: list[str], words: list[str], variables: dict[str, str]) -> None:
    found = parse_command(given, {"LD_LIBRARY_PATH": "/opt"})
    assert (list(found.words), found.variables) == (words, variables)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "not nothing"),
        (["hostname"], "not hostname"),
        (["sh", "-c", "prted"], "not sh"),
        (["prted; rm -rf /"], "not rm"),
        (["prted", "$(id)"], "needs a shell"),
        (["prted", "`id`"], "needs a shell"),
        (["prted", ">", "file"], "needs a shell"),
        (["cat x | prted"], "needs a shell"),
        (["export -p; prted"], "no variable"),
        (["prted 'unclosed"], "cannot be read"),
    ],
)
def test_other_commands_are_refused(given: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why):
        parse_command(given, {})
