"""What the agent sees of JAX: groups, processes that compute alone, and a stop on which JAX itself has agreed."""

import signal
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess, running_agent
from tests.unit.agent.fake_jax import fake_jax
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from tests.unit.agent.recorded_program import record_of
from trainyard.domain.state.termination import Kind

RANK_1 = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "JAX_COORDINATOR_ADDRESS": "train-worker-0.train:29500"}
STEPS = f"""{RANK_PRELUDE}
import jax
from jax.experimental import multihost_utils
jax.distributed.initialize()
step, stops = 0, False
while not stops:
    step += 1
    time.sleep(0.01)
    stops = multihost_utils.reached_preemption_sync_point(step)
    if step == 20: record(f"trains{{R}}", "yes")
record(f"last{{R}}", step)
"""
ENVIRONMENT = {**WARM_START_OFF, "TRAINYARD_RANK_VARIABLES": "SLURM_PROCID=rank,SLURM_NTASKS=world-size"}


@pytest.mark.parametrize(
    ("script", "group"),
    [
        ("jax.distributed.initialize(); jax.devices()", {"rank": 1, "size": 4, "formed": True}),
        ("jax.devices()", {"rank": 0, "size": 1, "formed": True}),
        ("pass", None),
    ],
)
def test_group_is_recorded(tmp_path: Path, script: str, group: dict[str, object] | None) -> None:
    fake_jax(tmp_path)
    assert record_of(tmp_path, f"import jax; {script}", **RANK_1).get("group") == group


def test_ranks_of_torch_may_use_jax_alone(tmp_path: Path) -> None:
    fake_jax(tmp_path)
    assert record_of(tmp_path, "import jax; jax.devices()", RANK="1", WORLD_SIZE="4").get("group") is None


@pytest.mark.parametrize(("last", "recorded"), [(19, None), (20, 20), (21, None)])
def test_step_of_a_stop_is_recorded(tmp_path: Path, last: int, recorded: int | None) -> None:
    """A program that asks again has not stopped."""
    fake_jax(tmp_path)
    script = f"""
import os, signal, jax
from jax.experimental.multihost_utils import reached_preemption_sync_point
jax.distributed.initialize()
os.kill(os.getpid(), signal.SIGTERM)
for step in range(11, {last + 1}): reached_preemption_sync_point(step)
"""
    assert record_of(tmp_path, script, **RANK_1).get("stoppedAfter") == recorded


def stop(run: AgentProcess) -> tuple[int, str]:
    """Ask the worker to exit while its ranks train."""
    for rank in (2, 3):
        run.file(f"trains{rank}")
    run.process.send_signal(signal.SIGTERM)
    return run.wait()


@pytest.mark.parametrize("ends", ["sys.exit(0)", "sys.exit(90)"])
def test_stop_by_jax_is_no_success(program: Path, folder: Path, operator: FakeOperator, ends: str) -> None:
    fake_jax(folder)
    with running_agent(
        program, folder, f"{STEPS}\n{ends}", **credentials(folder, operator.port), **ENVIRONMENT, PYTHONPATH=str(folder)
    ) as run:
        code, log = stop(run)
        assert code == 90, log
        assert run.data is not None
        assert run.data.kind is Kind.SAVED
        assert int(run.file("last2")) % 10 == 0


def test_other_ranks_may_save_after_the_first_exit(program: Path, folder: Path, operator: FakeOperator) -> None:
    """The worker itself stays: another one of the group is evicted, and JAX stops all of them."""
    fake_jax(folder)
    script = STEPS.replace("step, stops = 0", "distributed = jax._src.distributed; step, stops = 0") + (
        "\nsignal.signal(signal.SIGTERM, lambda *_: record(f'signalled{R}', 'yes'))"
        "\nif R == 3: time.sleep(2)\nrecord(f'saved{R}', step)\nsys.exit(90)"
    )
    noticed = "    distributed.global_state.noticed = os.path.exists('notice')\n    time.sleep(0.01)"
    script = script.replace("    time.sleep(0.01)", noticed)
    with running_agent(
        program, folder, script, **credentials(folder, operator.port), **ENVIRONMENT, PYTHONPATH=str(folder)
    ) as run:
        run.file("trains2")
        (folder / "notice").touch()
        assert int(run.file("saved3")) % 10 == 0
        assert operator.wait_for("failed")["failure"]["code"] == 90
        assert not [*folder.glob("signalled*")]
