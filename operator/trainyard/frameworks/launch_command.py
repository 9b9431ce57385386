"""Decide from a command whether it runs once per worker or once per rank. Pure.

A Python program runs once per rank, also behind wrappers (`env`, `timeout`, `uv run`) and in a shell script that only prepares its start.
Where that is not certain, the command runs once.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

PYTHON_NAME = re.compile(r"python[0-9.]*")
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "accelerate-launch", "deepspeed", "colossalai", "composer", "fabric", "lightning", "ray"}
    | {"mpirun", "mpiexec", "orterun", "horovodrun", "srun"}
    | {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
    | {
        "accelerate.commands.accelerate_cli",
        "deepspeed.launcher.launch",
        "lightning.fabric.cli",
        "lightning_fabric.cli",
        "composer.cli.launcher",
    }
    | {"horovod.runner", "horovod.runner.launch", "tune", "torchtune._cli.tune"}
    | {"paddle.distributed.launch", "fleetrun", "bpslaunch"}
)
"""Programs and modules that start the ranks of a worker."""
OPTIONS_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Options of Python that take the next argument."""
MODULE_OR_CODE = re.compile(r"-[bBdEhiIOPqsSuvx]*(?P<kind>[cm])(?P<module>.*)", re.DOTALL)
"""`-m` and `-c` of Python, also behind other options and with their value in one word: `-um`, `-mtorch.distributed.run`."""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
NODE_RANK_REFERENCE = re.compile(r"\$[({]?(RANK|WORLD_SIZE)\b")
"""A reference of a shell, or of Kubernetes, to the variables that other operators set to the worker's index and the number of workers."""
PREPARATION = frozenset(
    {"cd", "export", "set", "unset", "shopt", "source", ".", "eval", "ulimit", "umask", "mkdir", "sleep", "module"}
    | {":", "true", "test", "[", "echo", "printf", "pwd", "ls", "cat", "env", "printenv", "which", "type", "command"}
    | {"date", "id", "whoami", "hostname", "uname", "df", "free", "nvidia-smi", "ldconfig"}
)
"""Commands of a shell that may run once per rank: beside each other they do no harm."""
OUTPUT_TO_OUTPUT = re.compile(r"\s[12]?>&[12](?=[\s;]|$)")
"""Such a redirection opens no file that ranks would share."""


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A program that runs the command in its arguments, once, with its own environment."""

    flags: frozenset[str] = frozenset()
    """Its options without a value."""
    valued: frozenset[str] = frozenset()
    """Its options that take the next argument."""
    operands: int = 0
    """The arguments between its options and the command."""
    subcommand: str = ""
    """The subcommand that runs a command."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONDA = Wrapper(
    _words("--no-capture-output --live-stream -v --verbose"), _words("-n --name -p --prefix --cwd"), subcommand="run"
)
_RUN = Wrapper(_words("-q --quiet -v --verbose"), subcommand="run")
WRAPPERS: Mapping[str, Wrapper] = {
    "env": Wrapper(valued=_words("-u --unset -C --chdir")),
    "timeout": Wrapper(
        _words("--foreground --preserve-status -v --verbose"), _words("-s --signal -k --kill-after"), operands=1
    ),
    "nice": Wrapper(valued=_words("-n --adjustment")),
    "nohup": Wrapper(),
    "time": Wrapper(_words("-p -v")),
    "setsid": Wrapper(_words("-w --wait")),
    "stdbuf": Wrapper(valued=_words("-i -o -e --input --output --error")),
    "ionice": Wrapper(_words("-t"), _words("-c -n --class --classdata")),
    "taskset": Wrapper(_words("-a -c --all-tasks --cpu-list"), operands=1),
    "numactl": Wrapper(_words("-l --localalloc"), _words("-N -m -C -i -p --cpunodebind --membind --physcpubind")),
    "tini": Wrapper(_words("-g -s -v -vv -w"), _words("-e -p")),
    "dumb-init": Wrapper(_words("-c -v --single-child --verbose"), _words("-r --rewrite")),
    "gosu": Wrapper(operands=1),
    "su-exec": Wrapper(operands=1),
    "ddtrace-run": Wrapper(),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
    "uv": Wrapper(
        _words(
            "--active --all-extras --frozen --isolated --locked --no-cache --no-dev --no-project --no-sync --offline"
            " -q --quiet -s --script -v --verbose"
        ),
        _words(
            "--directory --env-file --extra --group --index --no-group --package --project -p --python --with"
            " --with-editable --with-requirements"
        ),
        subcommand="run",
    ),
    "poetry": _RUN,
    "pdm": _RUN,
    "pipenv": _RUN,
    "pixi": _RUN,
    "rye": _RUN,
    "hatch": _RUN,
}
"""Wrappers through which ranks keep their environment and their output files are their own."""


def starts_ranks(command: Sequence[str], processes: int) -> bool:
    """Return whether the command starts the ranks of a worker with so many processes itself.

    An unknown program is assumed to do so: a launcher that the agent started once for each rank would start too many.
    """
    program = unwrapped(command)
    if program:
        if is_python(program):
            return _is_launcher(_python_target(program[1:]))
        if basename(program[0]) in LAUNCHERS:
            return True
    return processes > 1 or _names_launcher(command)


def reads_node_rank(command: Sequence[str]) -> bool:
    """Return whether a launcher's flags refer to RANK or WORLD_SIZE, as commands for other operators do: of the worker, not of a rank."""
    return bool(command) and starts_ranks(command, 1) and NODE_RANK_REFERENCE.search(" ".join(command)) is not None


def unwrapped(command: Sequence[str]) -> Sequence[str]:
    """Return the command that wrappers and a shell lead to; empty where it is not certain that they lead to one."""
    words = list(command)
    while words and not is_python(words):
        name = basename(words[0])
        if name in SHELLS:
            words = _shell_target(words[1:])
        elif name in WRAPPERS:
            words = _wrapped(WRAPPERS[name], words[1:])
        else:
            break
    return words


def is_python(command: Sequence[str]) -> bool:
    """Return whether the command is a Python program: by its interpreter, or by the suffix of its script."""
    return PYTHON_NAME.fullmatch(basename(command[0])) is not None or command[0].endswith(".py")


def _wrapped(wrapper: Wrapper, words: list[str]) -> list[str]:
    """Return the command in the arguments of a wrapper; empty where an argument is not known."""
    if wrapper.subcommand and words[:1] != [wrapper.subcommand]:
        return []
    words = words[1:] if wrapper.subcommand else words
    while words and words[0].startswith("-"):
        option, words = words[0], words[1:]
        if option == "--":
            break
        if option in {"-m", "--module"} and wrapper is WRAPPERS["uv"]:
            return ["python", "-m", *words]
        if option in wrapper.valued:
            words = words[1:]
        elif option not in wrapper.flags and not _has_value(option, wrapper):
            return []
    while words and wrapper is WRAPPERS["env"] and ASSIGNMENT.match(words[0]):
        words = words[1:]
    return words[wrapper.operands :]


def _has_value(option: str, wrapper: Wrapper) -> bool:
    """Return whether an option has its value in the same word: `--nice=10`, `-n10`, `-oL`."""
    name, _, value = option.partition("=")
    if value and name in wrapper.valued:
        return True
    return not option.startswith("--") and option[:2] in wrapper.valued and len(option) > 2


def _shell_target(words: list[str]) -> list[str]:
    """Return the command to which a shell's script leads; empty where the script does more than prepare it."""
    commands = _simple_commands(_script(words))
    while commands and commands[-1][0] == "exit":
        commands = commands[:-1]
    if not commands or not all(map(_prepares, commands[:-1])):
        return []
    last = commands[-1]
    while ASSIGNMENT.match(last[0]) and len(last) > 1:
        last = last[1:]
    return last[1:] if last[0] == "exec" else last


def _script(words: list[str]) -> str:
    """Return the script of `sh -c`; empty where there is none."""
    reads_script = False
    while words and words[0][:1] in {"-", "+"}:
        option, words = words[0], words[1:]
        if option.startswith("--"):
            continue
        reads_script = reads_script or "c" in option
        words = words[1:] if option[-1] in "oO" else words
    return words[0] if reads_script and words else ""


def _simple_commands(script: str) -> list[list[str]]:
    """Return the commands of a script that run one after the other; none where there is another syntax than that."""
    script = OUTPUT_TO_OUTPUT.sub(" ", script.replace("\\\n", " "))
    lexer = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        parts = list(lexer)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    for part in parts:
        if part == "&&" or not part.strip(";\n"):
            commands.append([])
        elif part.startswith("#") or not part.strip("();<>|&\n"):
            return []
        else:
            commands[-1].append(part)
    return [command for command in commands if command]


def _prepares(command: list[str]) -> bool:
    """Return whether a command of a script only prepares the start of the next."""
    words = [word for word in command if not ASSIGNMENT.match(word)]
    conda = words[:1] in (["conda"], ["mamba"], ["micromamba"])
    return not words or words[0] in PREPARATION or (conda and words[1:2] in (["activate"], ["deactivate"]))


def _names_launcher(command: Sequence[str]) -> bool:
    """Return whether a wrapper's arguments or a shell's script name a launcher."""
    if basename(command[0]) not in SHELLS | WRAPPERS.keys():
        return basename(command[0]) in LAUNCHERS
    return any(basename(word) in LAUNCHERS for word in re.split(r"[^\w./-]+", " ".join(command[1:])))


def _is_launcher(target: str) -> bool:
    """Return whether a module or script is a launcher; a script also by its place: `…/torch/distributed/run.py`."""
    module = target.removesuffix(".py").replace("/", ".")
    return basename(target) in LAUNCHERS or any("." in name and module.endswith(f".{name}") for name in LAUNCHERS)


def _python_target(words: Sequence[str]) -> str:
    """Return the module or script that Python runs, or an empty string for code on the command line."""
    arguments = iter(words)
    for word in arguments:
        if word in OPTIONS_WITH_VALUE:
            next(arguments, None)
        elif option := MODULE_OR_CODE.match(word):
            return "" if option["kind"] == "c" else option["module"] or next(arguments, "")
        elif not word.startswith("-"):
            return word
    return ""
