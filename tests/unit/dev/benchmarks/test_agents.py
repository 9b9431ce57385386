"""The benchmark of agents runs whole, if only with a few of them: it has parts of the operator in hand, which change."""

import pytest

from dev.benchmarks.agents import __main__ as agents, waiting

JOBS = 3


async def test_all_agents_report_and_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "TIMEOUT_SECONDS", 20.0)
    rows = {row["what"]: row for row in await agents.measure(JOBS * agents.WORKERS, 0.5, 8)}
    assert [row.get("not_taken", 0) for row in rows.values()] == [0] * len(rows)
    assert rows["all at once"]["reports"] == 8
    assert rows["a new attempt of all jobs"]["agents"] == JOBS * agents.WORKERS
    assert rows["a new attempt of all jobs"]["not_started"] == 0
    assert rows["all agents report in batches"]["cpu_ms_an_agent"] > 0
