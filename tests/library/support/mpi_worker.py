"""One worker of an MPI job, without Kubernetes: `python3 mpi_worker.py FOLDER COMMAND …` runs one attempt of the agent, and writes how it ended.

The worker's variables are in the environment. The other workers run beside it, at other addresses of the loopback. In the place of the
operator, a worker that has failed leaves a file in FOLDER, by which all others stop.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

from trainyard_agent.attempt import Attempt, Command
from trainyard_agent.group import Group
from trainyard_agent.operator_link import Failure, OperatorLink
from trainyard_agent.orders import OperatorView

ORDER_SECONDS = 1.0
"""For which a worker runs on when another one has failed: the operator waits for other causes, too."""
CLONE_NEWNS = 0x20000
MS_PRIVATE_AND_BELOW = 0x44000
"""The mounts of this process are its own."""


def mount_folders() -> None:
    """Give this worker a temporary folder and shared memory of its own at the same paths, as pods have. Raises OSError.

    Hydra gives the paths of worker 0 to all ranks. Open MPI names its shared memory by the local rank.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "cannot leave the machine's mounts")
    folders = [(b"none", folder.encode(), b"tmpfs", 0) for folder in (os.environ["TMPDIR"], "/dev/shm")]  # noqa: S108 - of pods
    for source, target, kind, flags in ((None, b"/", None, MS_PRIVATE_AND_BELOW), *folders):
        if libc.mount(source, target, kind, flags, None) != 0:
            raise OSError(ctypes.get_errno(), f"cannot mount {target!r}")


def main(folder: Path, command: list[str]) -> None:
    """Run the attempt, and write the result of this worker."""
    index = os.environ["TRAINYARD_REPLICA_INDEX"]

    def report(failure: Failure) -> None:
        (folder / f"failed-{index}").write_text(failure.message)

    def must_stop() -> bool:
        others = [each for each in folder.glob("failed-*") if each.name != f"failed-{index}"]
        return any(time.time() - each.stat().st_mtime > ORDER_SECONDS for each in others)

    link = OperatorLink(
        must_stop=must_stop,
        report_failure=report,
        report_stop=lambda _: None,
        report_idle=lambda _: None,
        pending_stacks=lambda: "",
        report_stacks=lambda _: None,
        view=lambda: OperatorView(None, None, answered=True, silence=0.0),
    )
    with Group() as group:
        attempt = Attempt(
            Command(command, starts_ranks=True),
            dict(os.environ),
            group,
            lambda text: print(text, file=sys.stderr),  # noqa: T201 - into the output that the test shows
            secret="of this attempt",
        )
        outcome = attempt.run(link)
    failure = outcome.failure
    result = {
        "done": outcome.is_done,
        "stopped": outcome.stopped,
        "code": failure.code if failure else 0,
        "at": failure.at if failure else None,
        "message": failure.message if failure else "",
    }
    (folder / f"result-{index}").write_text(json.dumps(result))


if __name__ == "__main__":
    mount_folders()
    main(Path(sys.argv[1]), sys.argv[2:])
