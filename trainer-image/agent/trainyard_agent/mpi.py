"""What MPI launchers need to start daemons in the other workers without ssh: the hosts, and a program in the place of ssh.

Each MPI lets one name that program (docs/design/0047-mpi-without-ssh.md). Worker 0 runs the launcher; the agents of the others start what it
asks for.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainyard_agent.addresses import MAX_PORT, port_number
from trainyard_agent.errors import SetUpError
from trainyard_agent.ranks import Place, SettingError
from trainyard_agent.report import DIR_VARIABLE

NAME_VARIABLE, ADDRESSES_VARIABLE = "TRAINYARD_WORKER_NAME", "TRAINYARD_WORKER_ADDRESSES"
PORT_VARIABLE = "TRAINYARD_REMOTE_START_PORT"
FOLDER_VARIABLE = "TRAINYARD_REMOTE_START"
"""Where the files of an attempt are."""
REMOTE_START_OPTION = "--remote-start"
"""Of the agent's program: it is then what launchers call in the place of ssh."""
INDEX_FIELD = "{index}"
MEMBERS_FILE, SCRIPT_FILE = "members", "remote-start"
PROGRESS_LINK = "progress"
RECORDS_VARIABLE, RECORDS_FOLDER = "TRAINYARD_RANK_RECORDS", "records"
"""As in `rank_records.py`."""
LOCAL_HOST = "localhost"
IN_MEMORY = "/dev/shm"  # noqa: S108 - a folder of our own in it


class Members(NamedTuple):
    """The workers of one attempt, and how they reach each other."""

    attempt: int
    secret: str
    """That only the agents of this attempt know."""
    port: int
    """Where each agent listens, at the worker's address."""
    hosts: Mapping[str, str]
    """The address of each worker, by its name in the file of hosts."""
    own: str
    """The name of this worker."""

    @property
    def others(self) -> Mapping[str, str]:
        """The other workers."""
        return {name: address for name, address in self.hosts.items() if name != self.own}


def launches(place: Place) -> bool:
    """Return whether this worker runs the command. The agents of the others start what it asks for."""
    return place.worker == 0


def is_mpi(environment: Mapping[str, str]) -> bool:
    """Return whether the worker is one of an MPI job."""
    return bool(environment.get(PORT_VARIABLE))


def members(environment: Mapping[str, str], place: Place, secret: str) -> Members | None:
    """Return the members of the attempt; None for a single worker, which needs no remote start. Raises SettingError.

    `secret`: what the operator has given to the agents of this attempt.
    """
    if not is_mpi(environment) or place.workers == 1:
        return None
    addresses = environment.get(ADDRESSES_VARIABLE, "").split(",")
    if len(addresses) != place.workers or not all(map(is_address, addresses)):
        raise SettingError(f"{ADDRESSES_VARIABLE} must have the IP addresses of all {place.workers} workers")
    port, pattern = port_number(environment[PORT_VARIABLE]), environment.get(NAME_VARIABLE, "")
    if port is None:
        raise SettingError(f"{PORT_VARIABLE} must be a number from 1 to {MAX_PORT}, got {environment[PORT_VARIABLE]!r}")
    if INDEX_FIELD not in pattern:
        raise SettingError(f"{NAME_VARIABLE} must have {INDEX_FIELD}, got {pattern!r}")
    if not secret:
        raise SettingError("the operator gives no secret for remote starts: it is older than this agent")
    names = [pattern.replace(INDEX_FIELD, str(index)) for index in range(place.workers)]
    return Members(place.attempt, secret, port, dict(zip(names, addresses)), names[place.worker])


class MpiFiles:
    """The files of one attempt, in a folder that no other user can read. Use it in a `with`. Raises SetUpError."""

    def __init__(self, known: Members | None, place: Place, progress: Path | None = None) -> None:
        """`progress`: the folder in which ranks report what they do."""
        self._members, self._place, self._progress = known, place, progress
        self._folder: Path | None = None

    def __enter__(self) -> MpiFiles:  # noqa: PYI034 - Self needs Python 3.11
        folder = self._folder = _make_folder(f"trainyard-mpi-{self._place.run_id}")
        try:
            self._write(folder)
        except OSError as error:
            self.__exit__()
            why = f"cannot write the files of the MPI launcher into {folder}: {error.strerror}"
            raise SetUpError(error.errno, why) from error
        return self

    def _write(self, folder: Path) -> None:
        if self._progress is not None:
            (folder / PROGRESS_LINK).symlink_to(self._progress)
        names = [LOCAL_HOST] if self._members is None else [*self._members.hosts]
        slots = self._place.processes
        (folder / "hostfile").write_text("".join(f"{name} slots={slots}\n" for name in names))
        (folder / "hostfile.hydra").write_text("".join(f"{name}:{slots}\n" for name in names))
        if self._members is not None:
            (folder / MEMBERS_FILE).write_text(json.dumps(self._members._asdict()))
            script = folder / SCRIPT_FILE
            agent = str(Path(__file__).resolve().parents[1])
            command = shlex.join([sys.executable, "-I", "-S", agent, REMOTE_START_OPTION, str(folder)])
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            script.chmod(0o700)

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of launchers and daemons that the user has not set."""
        folder = self._folder
        made = {
            # Open MPI does not start without one.
            "HOME": str(folder),
            "PRTE_MCA_prte_default_hostfile": f"{folder}/hostfile",
            "OMPI_MCA_orte_default_hostfile": f"{folder}/hostfile",
            "HYDRA_HOST_FILE": f"{folder}/hostfile.hydra",
            "I_MPI_HYDRA_HOST_FILE": f"{folder}/hostfile.hydra",
            # Otherwise it deals ranks out to the hosts in turn.
            "I_MPI_PERHOST": str(self._place.processes),
        }
        if self._progress is not None:
            # Hydra gives the variables of worker 0 to all ranks: the path has to be valid in each worker.
            link = f"{folder}/{PROGRESS_LINK}"
            made |= {DIR_VARIABLE: link, RECORDS_VARIABLE: f"{link}/{RECORDS_FOLDER}"}
        if self._members is not None:
            script = f"{folder}/{SCRIPT_FILE}"
            made |= {
                FOLDER_VARIABLE: str(folder),
                "PRTE_MCA_plm_ssh_agent": script,
                "OMPI_MCA_plm_rsh_agent": script,
                "HYDRA_LAUNCHER": "rsh",
                "HYDRA_LAUNCHER_EXEC": script,
                "I_MPI_HYDRA_BOOTSTRAP": "rsh",
                "I_MPI_HYDRA_BOOTSTRAP_EXEC": script,
            }
        return {name: value for name, value in made.items() if name not in environment}


def read_members(folder: Path) -> Members:
    """Return the members of the attempt that runs. Raises OSError, and ValueError for a file that is not whole."""
    try:
        return Members(**json.loads((folder / MEMBERS_FILE).read_text()))
    except TypeError as error:
        raise ValueError(str(error)) from error


def _make_folder(name: str) -> Path:
    """Make a folder in which a script can be executed. Some containers forbid that in /tmp, or have a read-only /tmp.

    It has the same name in all workers: daemons of Open MPI start further daemons with the script of the launcher. Where two workers share
    a /tmp, only the first one gets it, which is enough for small jobs. Raises SetUpError.
    """
    tried, number = list[str](), errno.EACCES
    for find in (tempfile.gettempdir, lambda: IN_MEMORY):
        base = "/tmp"  # noqa: S108 - its name for people
        try:
            # It fails where the container has no folder that can be written.
            base = find()
            if os.statvfs(base).f_flag & os.ST_NOEXEC:
                tried.append(f"{base}: programs are forbidden there")
                continue
            folder = Path(base, name)
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
        except OSError as error:
            number = error.errno or number
            tried.append(f"{base}: {error.strerror}")
        else:
            return folder
    raise SetUpError(
        number,
        f"cannot make a folder for the files of the MPI launcher ({'; '.join(tried)}); mount an emptyDir at /tmp",
    )


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False
