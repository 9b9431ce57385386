"""Which environment variables a library reads while it is imported."""

import os

import pytest

from trainyard_agent.env_reads import EnvironmentReads


def test_reads_by_name_and_prefix_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with EnvironmentReads() as reads:
        os.environ.get("RANK")
        os.environ.get("SLURM_PROCID")
        os.environ.get("HOME")
    assert reads.found(["RANK"], ("SLURM_",)) == ["RANK", "SLURM_PROCID"]


@pytest.mark.parametrize("key", [b"RANK", None, 7])
def test_a_key_that_is_no_text_is_ignored(key: object) -> None:
    with EnvironmentReads() as reads, pytest.raises(TypeError):
        os.environ[key]  # type: ignore[index]
    assert reads.found(["RANK"], ("TRAINYARD_",)) == []
