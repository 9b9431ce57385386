"""The lines between `remote-start` and agents: authentic, in order, and of one connection."""

import pytest

from trainyard_agent.remote_lines import Action, LineError, Lines, Side, nonce_line, parse_action, parse_nonce

CALLER, AGENT = b"c" * 16, b"a" * 16


def lines(side: Side, secret: str = "of this attempt", agent: bytes = AGENT) -> Lines:  # noqa: S107 - of a test
    return Lines(secret, CALLER, agent, side)


def test_each_side_reads_the_other() -> None:
    caller, agent = lines(Side.CALLER), lines(Side.AGENT)
    for number in range(3):
        assert agent.opened(caller.sealed({"n": number, "text": "ä\n"})) == {"n": number, "text": "ä\n"}
        assert caller.opened(agent.sealed({"exit": number})) == {"exit": number}


@pytest.mark.parametrize(
    "reader",
    [
        lines(Side.AGENT, secret="that of the next attempt"),
        lines(Side.AGENT, agent=b"b" * 16),
        lines(Side.CALLER),
    ],
    ids=["another secret", "another connection", "sent back"],
)
def test_recorded_line_is_of_no_use(reader: Lines) -> None:
    with pytest.raises(LineError):
        reader.opened(lines(Side.CALLER).sealed({"action": "start"}))


def test_line_counts_once() -> None:
    agent, line = lines(Side.AGENT), lines(Side.CALLER).sealed({"signal": 15})
    agent.opened(line)
    with pytest.raises(LineError):
        agent.opened(line)


@pytest.mark.parametrize("line", [b"", b"\n", b"x y\n", b"0" * 64 + b" {}\n", b"\xff\xff"])
def test_malformed_line_is_an_error(line: bytes) -> None:
    with pytest.raises(LineError):
        lines(Side.AGENT).opened(line)


def test_nonce_has_one_form() -> None:
    assert parse_nonce(nonce_line(AGENT)) == AGENT
    for line in (b"", b"00\n", b"z" * 32, b"\xff" * 16, nonce_line(AGENT * 2)):
        with pytest.raises(LineError):
            parse_nonce(line)


def test_actions_are_checked() -> None:
    assert parse_action({"action": "start", "words": ["prted"]}) == (Action.START, ["prted"])
    assert parse_action({"action": "state"}) == (Action.STATE, [])
    wrong: list[dict[str, object]] = [{}, {"action": "exec"}, {"action": "start", "words": "prted"}]
    wrong += [{"action": "start", "words": words} for words in ([1], ["a\0b"], ["x"] * 5000)]
    for fields in wrong:
        with pytest.raises(LineError):
            parse_action(fields)
