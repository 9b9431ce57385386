"""The processes of a job, as the machine that plays the nodes sees them."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


def writers(diaries: Collection[str], proc: Path = PROCESSES) -> dict[str, int]:
    """Return the process that has each diary open, by the diary's name. A fork of it has the diary too, and a higher number."""
    found: dict[str, int] = {}
    for folder in _processes(proc):
        with suppress(OSError):
            for link in (folder / "fd").iterdir():
                name = link.readlink().name
                if name in diaries:
                    found.setdefault(name, int(folder.name))
    return found


def named(job: str, name: str, proc: Path = PROCESSES) -> dict[int, str]:
    """Return the job's processes of this name, each with the pod that it runs in."""
    found: dict[int, str] = {}
    for folder in _processes(proc):
        with suppress(OSError):
            if (folder / "comm").read_text().strip() != name:
                continue
            variables = dict(
                entry.split("=", 1)
                for entry in (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if "=" in entry
            )
            if variables.get("BENCH_JOB") == job:
                found[int(folder.name)] = variables.get("BENCH_POD", "")
    return found


def _processes(proc: Path) -> Iterator[Path]:
    yield from sorted(proc.glob("[0-9]*"), key=lambda folder: int(folder.name))
