"""What an exception comes from: the program and its image, or something outside that may pass."""

import pytest

from trainyard_agent.memory import Memory
from trainyard_agent.termination_message import failure
from trainyard_agent.tracebacks import location, of_exit

UNKNOWN = Memory(None, None, None)
BEGIN = "Traceback (most recent call last):\n"
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"


def traceback(exception: str) -> str:
    return f'{BEGIN}  File "/job/train.py", line 3, in <module>\n    run()\n{exception}\n'


def cause(output: str, code: int = 1) -> str:
    return failure(0, code, output, UNKNOWN, UNKNOWN)[0].cause


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        ("ModuleNotFoundError: No module named 'einops'", "missingModule"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "missingLibrary"),
        ("ImportError: cannot import name 'x' from 'y' (/y.py)", "program"),
        (
            "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']",
            "noTemporaryFolder",
        ),
        ("OSError: [Errno 30] Read-only file system: '/tmp/cache'", "noTemporaryFolder"),
        ("PermissionError: [Errno 13] Permission denied: '/.cache'", "noHome"),
        ("OSError: [Errno 30] Read-only file system: '/root/.triton'", "noHome"),
        ("OSError: [Errno 30] Read-only file system: 'checkpoints'", "readOnlyFolder"),
        ("Exception: no such model: gpt-9", "program"),
        ("KeyError: 'getpwuid(): uid not found: 1234'", "noUserName"),
        ("OSError: No username set in the environment", "noUserName"),
        ("OSError: [Errno 98] Address already in use", "portInUse"),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE", "portInUse"),
        ("socket.gaierror: [Errno -2] Name or service not known", "nameNotResolved"),
        ("RuntimeError: No CUDA GPUs are available", "noAccelerator"),
        ("AssertionError: Torch not compiled with CUDA enabled", "noCuda"),
        ("RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu!", "program"),
        ("NameError: name 'store' is not defined", "program"),
        ("TypeError: train() got an unexpected keyword argument 'timeout'", "program"),
        ("KeyError: 'network'", "program"),
        ("ImportError: cannot import name 'retry' from 'tools' (/tools.py)", "program"),
        ("omegaconf.errors.ConfigAttributeError: Key 'lr' is not in struct", "program"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for Config", "program"),
        ("argparse.ArgumentError: argument --lr: invalid float value: 'x'", "program"),
        ("yaml.scanner.ScannerError: mapping values are not allowed here", "program"),
        ("json.decoder.JSONDecodeError: Expecting ',' delimiter: line 3 column 5 (char 40)", "program"),
        ("tomllib.TOMLDecodeError: Expected '=' after a key in a key/value pair (at line 1, column 4)", "program"),
        ("yaml.parser.ParserError: while parsing a block mapping", "program"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", ""),
        ("requests.exceptions.JSONDecodeError: Extra data: line 1 column 5 (char 4)", ""),
        ("ImportError: [Errno 116] Stale file handle", ""),
        ("ImportError: [Errno 5] Input/output error", ""),
        ("data.ChecksumValidationError: shard 7", ""),
        ("mylib.ConfigError: cannot download the configuration", ""),
        ("KeyError: 'SLURM_PROCID'", "unknownVariable"),
        ("KeyError: 'WORLD_SIZE'", "unknownVariable"),
        ("ValueError: Error initializing: environment variable RANK expected, but not set", "unknownVariable"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "missingFile"),
        ("KeyError: 'optimizer'", "program"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "program"),
        ("AttributeError: 'NoneType' object has no attribute 'step'", "program"),
        ("ZeroDivisionError: division by zero", "program"),
        ("AssertionError", "program"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", ""),
        ("TimeoutError: [Errno 110] Connection timed out", ""),
        ("OSError: [Errno 5] Input/output error", ""),
        ("OSError: [Errno 28] No space left on device", ""),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permissionDenied"),
        ("OSError: [Errno 116] Stale file handle", ""),
        ("MemoryError", ""),
        ("EOFError", ""),
        ("KeyboardInterrupt", ""),
        ("RuntimeError: CUDA error: out of memory", ""),
        ("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1275", ""),
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer", ""),
        ("torch.OutOfMemoryError: CUDA out of memory.", ""),
        ("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.", ""),
        ("RuntimeError: DataLoader worker (pid 17) is killed by signal: Bus error.", ""),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443)", ""),
        ("huggingface_hub.errors.HfHubHTTPError: 503 Server Error", ""),
        ("ValueError: cannot connect to the tracking server", ""),
        ("MyOwnError: who knows", ""),
    ],
)
def test_cause_of_an_exception(exception: str, expected: str) -> None:
    assert cause(traceback(exception)) == expected


def test_exception_after_one_from_outside_may_pass() -> None:
    first = traceback("ConnectionResetError: [Errno 104] Connection reset by peer")
    assert cause(first + CHAIN + traceback("ValueError: the data set is empty")) == ""
    assert cause(traceback("KeyError: 'x'") + CHAIN + traceback("ValueError: no x")) == "program"


def test_module_that_python_does_not_find() -> None:
    assert cause("/usr/bin/python3: No module named train") == "missingModule"
    assert cause("train: No module named x was loaded") == ""


def test_killed_rank_has_no_cause() -> None:
    assert cause(traceback("KeyError: 'x'"), code=137) == ""


SYNTAX = """  File "/job/train.py", line 7
    def train(:
              ^
SyntaxError: invalid syntax
"""


def test_script_that_python_cannot_compile() -> None:
    data, text = failure(0, 1, f"a warning\n{SYNTAX}", UNKNOWN, UNKNOWN)
    assert (data.exception, data.location, data.cause) == ("SyntaxError: invalid syntax", "train.py:7", "syntaxError")
    assert text == SYNTAX.strip("\n")


def test_long_output_is_read_in_time() -> None:
    for output in ("  File " * 8000, "x" * 32_000, "a.b" * 10_000, '  File "x", line 1\n' * 2000):
        exception, text = of_exit(1, output)
        assert (exception, location(text), cause(output)) == ("", "", "")
