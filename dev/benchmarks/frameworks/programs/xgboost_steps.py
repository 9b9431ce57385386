"""XGBoost's collective: the tracker runs in rank 0, at the address that both systems set."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

BEGAN = time.monotonic()

# The benchmark measures the import time.
import numpy as np  # noqa: E402 - see above
from xgboost import collective  # noqa: E402 - see above
from xgboost.tracker import RabitTracker  # noqa: E402 - see above

from dev.benchmarks.frameworks.programs.diary import STEP_SECONDS, STEPS, Diary, load, save  # noqa: E402 - see above


def main(folder: Path, checkpoint_every: int) -> None:
    """Train until a fault. The loop does what boosting does in each round: it sums up over all ranks."""
    diary = Diary(folder, BEGAN)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        tracker = RabitTracker(n_workers=size, host_ip="0.0.0.0", port=port, sortby="task")  # noqa: S104 - its peers are on other machines
        tracker.start()
    else:
        # A process that is earlier than the tracker tries again after six seconds.
        time.sleep(1)
    with collective.CommunicatorContext(
        dmlc_communicator="rabit",
        dmlc_tracker_uri=os.environ["MASTER_ADDR"],
        dmlc_tracker_port=port,
        dmlc_task_id=str(rank),
        dmlc_retry=10,
    ):
        group = collective.broadcast(secrets.token_hex(8) if rank == 0 else None, 0)
        diary.connected(rank, size, group)
        first, values = load(folder)
        weights = np.array(values, np.float32)
        diary.write("loaded", step=first)
        for step in range(first + 1, STEPS + 1):
            time.sleep(STEP_SECONDS)
            gradient = weights / 2 + rank + step
            weights -= 1e-6 * collective.allreduce(gradient, collective.Op.SUM)
            diary.step(step)
            if rank == 0 and step % checkpoint_every == 0:
                save(folder, step, weights.tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
