"""The one line of a container's last words that says most."""

import pytest

from trainyard.domain.wording import LONGEST, counted, headline, raised_at, without_last_clause

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
            "a training process exited with code 1; see the log of the worker",
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


def test_numbers_of_things() -> None:
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


@pytest.mark.parametrize(("sentence", "rest"), [("a; b; c", "a; b"), ("a", "a"), ("", "")])
def test_last_clause_is_cut_off(sentence: str, rest: str) -> None:
    assert without_last_clause(sentence) == rest


DEEP = "".join(f'  File "/app/src/part{n}.py", line {n}, in f{n}\n    f{n + 1}()\n' for n in range(1, 6))


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("exit code 3, and no more", "", id="no traceback"),
        pytest.param(
            f"Traceback (most recent call last):\n{DEEP}ValueError: x",
            "part5.py:5 in f5 < part4.py:4 in f4 < part3.py:3 in f3",
            id="the innermost three",
        ),
        pytest.param(
            '  File "/app/t.py", line 14, in main\n  File "/app/t.py", line 9, in train_step\n'
            '  File "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", line 1739, in _wrapped_call_impl\n'
            '  File "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", line 125, in forward\n',
            "linear.py:125 in forward < t.py:9 in train_step < t.py:14 in main",
            id="the user's own lines behind a library's",
        ),
        pytest.param('  File "<string>", line 7, in <module>\nKeyError: 1', "<string>:7 in <module>", id="no file"),
        pytest.param(
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n\nDuring handling of the above exception …\n\n'
            'Traceback (most recent call last):\n  File "b.py", line 2, in g\nValueError: 2',
            "b.py:2 in g",
            id="the last of several",
        ),
        pytest.param('  File "a.py", line 12345678901, in f\n', "", id="no line that there can be"),
    ],
)
def test_where_it_was_raised(message: str, frames: str) -> None:
    assert raised_at(message) == frames
