"""A training with a parameter server comes to its end: when it is asked to, and when one of its processes is lost."""

import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.library.support.processes import RankError, run
from tests.library.support.programs import started
from trainyard_agent import report
from trainyard_agent.stopping import LAYOUT, STOP_SUFFIX, Slot, hold_all
from trainyard_torch.server import Roles
from trainyard_torch.server.session import ServerError, join_parameter_server

PLAIN = partial(torch.optim.SGD, lr=0.1)


def asked(folder: str, bound: int | None, whom: int | None) -> Any:
    """SIGTERM comes to one of them while they train, if to any. Exit code, own steps, and what trainer 0 could save."""
    rank, steps, kept = int(os.environ["RANK"]), 0, {"updates": 0}
    pid = Path(folder) / f"pid-{rank}"
    pid.write_text(str(os.getpid()))
    model = nn.Linear(2, 1)
    try:
        with join_parameter_server(
            model, PLAIN, Roles(4, 2), rank, staleness=bound, timeout=60, init_method=f"file://{folder}/rpc"
        ) as parameters:
            while parameters and not parameters.must_stop():
                if (rank, steps) == (0, 5) and whom is not None:
                    os.kill(int(pid.with_name(f"pid-{whom}").read_text()), signal.SIGTERM)
                model(torch.ones(2)).sum().backward()
                time.sleep(0.02 * rank)
                parameters.push()
                steps += 1
            if parameters and rank == 0:
                parameters.wait_for_other_trainers()
                kept = parameters.state_dict()
    except SystemExit as end:
        return end.code, steps, kept["updates"]
    return None


@pytest.mark.parametrize("whom", [1, 2, 3], ids=["a trainer", "the first server", "another server"])
def test_in_step_all_stop_after_the_same_one(tmp_path: Path, whom: int) -> None:
    (code, steps, updates), *others = run(4, tmp_path, asked, str(tmp_path), None, whom)
    assert (code, updates) == (90, steps)
    assert steps > 5
    assert others == [(90, steps, 0), (90, 0, 0), (90, 0, 0)]


def test_asynchronous_checkpoint_has_all_gradients(tmp_path: Path) -> None:
    (code, steps, updates), (other, further, _), *servers = run(4, tmp_path, asked, str(tmp_path), 3, 1)
    assert (code, other, servers) == (90, 90, [(90, 0, 0)] * 2)
    assert updates == steps + further


def agree(folder: Path, stop_steps: list[int]) -> None:
    """What the agents do: they ask all ranks, and name the step after the furthest."""
    files = [folder / f"{rank}{STOP_SUFFIX}" for rank in range(4)]
    while not all(file.exists() and file.stat().st_size == LAYOUT.size for file in files):
        time.sleep(0.05)
    time.sleep(0.3)
    slots = [Slot(str(file)) for file in files]
    stop_steps.append(1 + hold_all(slots))
    for slot in slots:
        slot.set_stop_step(stop_steps[0])
        slot.close()


def supervised(folder: str, bound: int | None) -> Any:
    os.environ[report.FILE_VARIABLE] = f"{folder}/{os.environ['RANK']}"
    return asked(folder, bound, None)


@pytest.mark.parametrize("bound", [None, 3], ids=["in step", "out of step"])
def test_servers_take_part_in_the_agents_agreement(tmp_path: Path, bound: int | None) -> None:
    stop_steps: list[int] = []
    agents = threading.Thread(target=agree, args=(tmp_path, stop_steps), daemon=True)
    agents.start()
    (code, steps, updates), (other, further, _), *servers = run(4, tmp_path, supervised, str(tmp_path), bound)
    assert (code, other, servers) == (90, 90, [(90, 0, 0)] * 2)
    if bound is None:
        assert stop_steps == [steps] == [further] == [updates]
    else:
        assert stop_steps[0] <= updates == steps + further


KILLED = """
import os, torch
from functools import partial
from trainyard_torch.server import Roles
from trainyard_torch.server.session import join_parameter_server
model = torch.nn.Linear(2, 1)
with join_parameter_server(model, partial(torch.optim.SGD, lr=0.1), Roles(4, 2), int(os.environ["RANK"]), timeout=60) as parameters:
    for step in range(10 ** 9) if parameters else ():
        model(torch.ones(2)).sum().backward()
        parameters.push()
        if step == 5: print("five", flush=True)
"""


@pytest.mark.parametrize(("victim", "name"), [(1, "trainer-1"), (3, "server-1")])
def test_others_exit_naming_the_killed_one(tmp_path: Path, victim: int, name: str) -> None:
    (tmp_path / "program.py").write_text(KILLED)
    with started(tmp_path / "program.py", 4, TP_SOCKET_IFNAME="lo") as ranks:
        for each in ranks[:2]:
            assert each.stdout
            assert each.stdout.readline() == "five\n"
        ranks[victim].kill()
        for rank, each in enumerate(ranks):
            _, output = each.communicate(timeout=40)
            if rank != victim:
                assert each.returncode == 92, output
                assert re.search(rf"WorkerLostError: [^\n]*{name}[^\n]* ((has|have) died|does not answer)", output), (
                    output
                )


def one_dies(folder: str) -> Any:
    rank, roles = int(os.environ["RANK"]), Roles(3, 1)
    model = nn.Linear(2, 1)
    with join_parameter_server(model, PLAIN, roles, rank, timeout=3, init_method=f"file://{folder}/rpc") as parameters:
        if parameters is None:
            return time.sleep(60)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        model(torch.ones(2)).sum().backward()
        parameters.push()
    return None


def test_waiting_for_a_dead_trainer_names_it(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="ServerError: server-0 has waited for trainer-1 for 3 s"):
        run(3, tmp_path, one_dies, str(tmp_path), patience=50)


def one_is_done(folder: str) -> Any:
    rank, roles = int(os.environ["RANK"]), Roles(3, 1)
    model = nn.Linear(2, 1)
    with join_parameter_server(model, PLAIN, roles, rank, timeout=30, init_method=f"file://{folder}/rpc") as parameters:
        if parameters is None:
            return None
        if rank == 0:
            parameters.push()
        elif rank == 1:
            time.sleep(1)
    return None


def test_waiting_for_a_finished_trainer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"(?s)ServerError: server-0 .*trainer-1 has left"):
        run(3, tmp_path, one_is_done, str(tmp_path), patience=50)


def server_dies(folder: str) -> Any:
    rank, roles = int(os.environ["RANK"]), Roles(2, 1)
    model = nn.Linear(2, 1)
    with join_parameter_server(model, PLAIN, roles, rank, timeout=2, init_method=f"file://{folder}/rpc") as parameters:
        if parameters is None:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGSTOP)
            return None
        time.sleep(1)
        with pytest.raises(ServerError, match="server-0 does not answer: it has died"):
            parameters.pull()
        raise KeyError("as it should be")


def test_a_server_that_died_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="as it should be"):
        run(2, tmp_path, server_dies, str(tmp_path), patience=50)
