"""The one line of a container's last words that says most."""

import pytest

from trainyard.domain.wording import LONGEST, headline

TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 9, in <module>
[rank1]: RuntimeError: shapes do not match
W1121 11:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 9 closing signal SIGTERM
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_11:00:00
  exitcode  : 1 (pid: 9)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("=====\n-----\n", "", id="nothing but lines"),
        pytest.param("out of disk space\n", "out of disk space", id="one line"),
        pytest.param("loading\nout of disk space", "out of disk space", id="the last of several"),
        pytest.param("Traceback:\n  x\nKeyError: 'a'\nbye", "KeyError: 'a'", id="an exception, and a farewell"),
        pytest.param(
            "KeyError: 'a'\n\nDuring …:\n\nmy.own.TrainException", "my.own.TrainException", id="the later of two"
        ),
        pytest.param(TORCHRUN, "RuntimeError: shapes do not match", id="a rank's, not torchrun's own"),
        pytest.param(
            TORCHRUN.split("\n", 3)[3],
            "a training process ended with exit code 1; the log of the worker says why",
            id="torchrun's end alone",
        ),
        pytest.param(
            "[0]:\n  traceback : Signal 9 (SIGKILL) received by PID 9\n====",
            "Signal 9 (SIGKILL) received by PID 9",
            id="a signal in torchrun's summary",
        ),
        pytest.param("E" * 9000, "E" * LONGEST, id="cut"),
    ],
)
def test_headline(message: str, line: str) -> None:
    assert headline(message) == line
