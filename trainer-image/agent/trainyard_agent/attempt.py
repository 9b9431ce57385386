"""Run the ranks of this worker for one attempt: start them, supervise them, and report how the attempt ended."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Optional

from trainyard_agent import horovod, mpi
from trainyard_agent.coordinated_stop import CoordinatedStop
from trainyard_agent.daemon_command import DaemonCommand
from trainyard_agent.deepspeed import Ranks, ranks, variables_beside_torchrun
from trainyard_agent.errors import SetUpError
from trainyard_agent.flower import FLOWER_OPTION, flower_node
from trainyard_agent.gpu import has_gpu
from trainyard_agent.group import Group
from trainyard_agent.hang import MIN_GPU_LIMIT_SECONDS, MIN_LIMIT_SECONDS
from trainyard_agent.hang_diagnosis import Observers
from trainyard_agent.horovod import Rendezvous
from trainyard_agent.idle_watch import IdleWatch
from trainyard_agent.launchers import placed
from trainyard_agent.memory import Kills
from trainyard_agent.missing_programs import missing_fix
from trainyard_agent.mpi_supervisor import MpiSupervisor
from trainyard_agent.nccl_network import SUBSYSTEMS_VARIABLE, NcclLines
from trainyard_agent.operator_link import Failure, OperatorLink
from trainyard_agent.peers import Peers
from trainyard_agent.program import parse
from trainyard_agent.progress_files import Progress, shared_variables
from trainyard_agent.rank_defaults import network_variables, rank_defaults
from trainyard_agent.rank_records import Programs, RankRecords
from trainyard_agent.ranks import (
    environments,
    grace_seconds,
    hang_seconds,
    hidden_failures_fail,
    place,
    restart_grace_seconds,
)
from trainyard_agent.ray import RAY_OPTION, ray_node
from trainyard_agent.recorder import Recorder, defaults
from trainyard_agent.remote_starts import RemoteStarts
from trainyard_agent.reporter import Reporter
from trainyard_agent.spawn import UNSTARTABLE_CODES
from trainyard_agent.supervisor import Supervisor
from trainyard_agent.termination_message import Kind, Termination, write
from trainyard_agent.warm_start import WarmStart

FAILED_CODE = 1


class Command(NamedTuple):
    """The command that the worker runs."""

    words: Sequence[str]
    starts_ranks: bool
    """Whether it starts the ranks itself, as torchrun does."""
    deepspeed: Optional[Ranks] = None  # noqa: UP045 - Python 3.9
    """Where the agent starts the ranks of a `deepspeed` command in place of its launcher: how."""

    @classmethod
    def of(cls, words: Sequence[str], environment: Mapping[str, str], *, starts_ranks: bool) -> Command:
        """Return the command of a worker with these variables. `starts_ranks`: whether it starts the ranks, as far as the operator knows.

        Raises SettingError where the variables of Ray or Flower are wrong.
        """
        for option, node in ((RAY_OPTION, ray_node), (FLOWER_OPTION, flower_node)):
            if node(words, environment) is not None:
                return cls([sys.executable, "-I", "-S", sys.argv[0], option, *words], True)  # noqa: FBT003 - a field of the tuple
        # Without an address of rank 0 the ranks could not meet.
        found = ranks(words, environment) if starts_ranks and "MASTER_ADDR" in environment else None
        return cls(found.words, False, found) if found else cls(words, starts_ranks)  # noqa: FBT003 - a field of the tuple


class Outcome(NamedTuple):
    """How an attempt ended."""

    failure: Optional[Failure] = None  # noqa: UP045 - Python 3.9
    stopped: bool = False
    """Whether the operator stopped it."""
    note: Optional[str] = None  # noqa: UP045 - Python 3.9
    """The termination message of a worker that has done its work, where there is something to tell."""

    @property
    def is_done(self) -> bool:
        """Whether all ranks have done their work."""
        return self.failure is None and not self.stopped


class Attempt:
    """One attempt. Raises SettingError where the operator's part of `environment`, the worker's for this attempt, is wrong.

    `reporting_ranks`: the ranks that reported steps in an earlier attempt; those of this attempt are added.
    """

    def __init__(
        self,
        command: Command,
        environment: Mapping[str, str],
        group: Group,
        log: Callable[[str], None],
        warm: WarmStart | None = None,
        reporting_ranks: set[int] | None = None,
        secret: str = "",
    ) -> None:
        """`secret`: that of the attempt, with which the workers of an MPI job start daemons in each other."""
        self.preflight_seconds: float | None = None
        """How long nodes were compared before, which is reported; None where they were not."""
        self._command, self._environment, self._group, self._log = command, environment, group, log
        self._warm = warm
        self._place, self._hang_seconds = place(environment), hang_seconds(environment)
        self._grace_seconds, self._restart_grace = grace_seconds(environment), restart_grace_seconds(environment)
        self._fail_hidden = hidden_failures_fail(environment)
        self._reporting_ranks = set[int]() if reporting_ranks is None else reporting_ranks
        self._members = mpi.members(environment, self._place, secret)
        self._rendezvous = horovod.rendezvous(environment)
        self._kills = Kills()
        self._nccl = NcclLines()

    def run(self, link: OperatorLink) -> Outcome:
        """Run the ranks until all have exited."""
        launcher = self._command.starts_ranks
        runs_ranks = not launcher and parse(self._command.words) is not None
        with ExitStack() as stack:
            progress = stack.enter_context(
                Progress(
                    self._hang_seconds,
                    self._log,
                    self._reporting_ranks,
                    launcher=launcher,
                    least=MIN_GPU_LIMIT_SECONDS if has_gpu(self._environment) else MIN_LIMIT_SECONDS,
                )
            )
            recorder = stack.enter_context(Recorder(self._environment, self._place, self._log))
            records = stack.enter_context(
                RankRecords(
                    progress.folder,
                    runs_ranks=runs_ranks,
                    roots=lambda: self._group.running_pids,
                    watcher=self._group if mpi.is_mpi(self._environment) else None,
                )
            )
            try:
                shared = {**recorder.variables, **records.variables, **self._enter_mpi(stack, progress)}
                remote = self._enter_remote_starts(stack, shared, progress)
                if self._rendezvous is not None:
                    self._enter_rendezvous(stack, self._rendezvous, link)
                self._start(shared, progress)
            except OSError as error:
                return Outcome(self._start_failure(error, link))
            self.prepare(delay=True)
            reporter = stack.enter_context(
                Reporter(
                    self._environment,
                    self._place.attempt,
                    lambda: (progress.read_all(self._place.ranks), progress.usual),
                    self._log,
                    lambda: self._warm.resident if self._warm else 0,
                    lambda: self._programs(records),
                    lambda: self._nccl.network,
                )
            )
            # The ranks of a launcher stop as it wants.
            folder = None if launcher else progress.folder
            stop = CoordinatedStop(folder, self._place, self._grace_seconds, link.report_stop, link.view)
            observers = Observers(progress, recorder, reporter, records, IdleWatch(self._hang_seconds))
            supervisor = self._supervisor(
                remote, self._group, self._place, observers, stop, self._kills, link, self._log
            )
            outcome = Outcome(*supervisor.run(self._restart_grace, fail_hidden=self._fail_hidden))
            if kept := recorder.summary():
                self._log(kept)
            if outcome.is_done:
                reporter.finish()
                recorder.finish()
            return outcome

    def _programs(self, records: RankRecords) -> Programs:
        """Return what of the programs of this worker is compared with the ranks that are expected."""
        expected = self._place.workers * self._place.processes
        return Programs(
            records.formed if expected > 1 else None,
            records.torch_processes if self._place.processes > 1 else None,
            self.preflight_seconds,
        )

    def prepare(self, *, delay: bool) -> None:
        """Start to prepare what the ranks of the next start need. `delay`: later, since ranks start at this moment."""
        if self._warm is not None:
            self._warm.prepare([*self._rank_environments().values()], delay=delay)

    def _enter_mpi(self, stack: ExitStack, progress: Progress) -> Mapping[str, str]:
        """Write what launchers of MPI need, and return their variables. Raises SetUpError."""
        if not mpi.is_mpi(self._environment):
            return {}
        files = stack.enter_context(mpi.MpiFiles(self._members, self._place, progress.folder))
        return files.variables(self._environment)

    def _enter_remote_starts(
        self, stack: ExitStack, shared: Mapping[str, str], progress: Progress
    ) -> RemoteStarts | None:
        """Listen for launchers in other workers, where there are any. Raises SetUpError."""
        if self._members is None:
            return None
        ((rank, inherited),) = self._rank_environments().items()
        environment = {**inherited, **progress.variables(rank), **shared}

        def start(command: DaemonCommand) -> int:
            return self._group.start_one(rank, command.words, {**environment, **command.variables})

        return stack.enter_context(RemoteStarts(self._members, self._group, start, self._log, environment))

    def _enter_rendezvous(self, stack: ExitStack, where: Rendezvous, link: OperatorLink) -> None:
        """Serve the store in which ranks of Horovod meet, or wait for that of worker 0. Raises SetUpError."""
        if not where.is_ipv4:
            raise SetUpError(
                errno.ENOEXEC, f"Horovod's ranks meet over IPv4 alone, and worker 0 has the address {where.host}"
            )
        if horovod.serves(self._place):
            # The agents of other jobs do without its modules.
            from trainyard_agent.horovod_store import StoreServer  # noqa: PLC0415

            try:
                stack.enter_context(StoreServer(where))
            except OSError as error:
                why = f"cannot serve the rendezvous of Horovod address={where}: {error.strerror}"
                raise SetUpError(error.errno, why) from error
            return

        def goes_on() -> bool:
            return not (self._group.is_terminating or link.must_stop())

        if not horovod.await_store(where, goes_on, self._group.wait) and goes_on():
            self._log(
                f"worker 0 does not serve the rendezvous of Horovod address={where}; starting the ranks nevertheless"
            )

    def _supervisor(self, remote: RemoteStarts | None, *parts: Any) -> Supervisor:
        if not mpi.is_mpi(self._environment):
            return Supervisor(*parts)
        peers = Peers(self._members) if self._members is not None and mpi.launches(self._place) else None
        return MpiSupervisor(*parts, remote=remote, peers=peers)

    def _start(self, shared: Mapping[str, str], progress: Progress) -> None:
        """Start the ranks. Raises OSError where that is not possible. `shared`: variables that all of them get."""
        made = self._rank_environments()
        if self._members is not None and not mpi.launches(self._place):
            # Its ranks are those of the daemons that the launcher asks for.
            made = {}
        is_first = SUBSYSTEMS_VARIABLE in made.get(0, {}) and SUBSYSTEMS_VARIABLE not in self._environment
        self._group.filters = {0: self._strip_nccl} if is_first else {}
        for rank, variables in made.items():
            variables.update({**progress.variables(rank), **shared})
        if self._warm is None or not self._warm.start(made):
            deepspeed = self._command.deepspeed
            local_rank_at = deepspeed.local_rank_at if deepspeed else None
            self._group.start(self._words(), made, starts_ranks=self._command.starts_ranks, local_rank_at=local_rank_at)

    def _words(self) -> Sequence[str]:
        """Return the command. A launcher gets the place of this worker."""
        command = self._command
        found = placed(command.words, self._environment, self._place) if command.starts_ranks else None
        if found is None:
            return command.words
        self._log(f"options added to the command of {found.launcher}: {' '.join(found.added)}")
        return found.words

    def _rank_environments(self) -> dict[int, dict[str, str]]:
        """Return the environment of each process, by rank."""
        inherited = dict(self._environment)
        command, world_size = self._command, self._place.workers * self._place.processes
        # Before the ranks' own variables: these are the same for all ranks.
        defaulted = rank_defaults(command.words, inherited, world_size, starts_ranks=command.starts_ranks)
        network = network_variables(inherited, defaulted, self._place.workers)
        inherited = {**inherited, **defaulted}
        if command.deepspeed:
            inherited = {**variables_beside_torchrun(self._place), **inherited}
        made = {self._place.worker: inherited} if command.starts_ranks else environments(self._place, inherited)
        if not command.starts_ranks and 0 in made:
            made[0].update(network)
        return {
            rank: {**variables, **shared_variables(variables), **defaults(variables)}
            for rank, variables in made.items()
        }

    def _strip_nccl(self, data: bytes) -> bytes:
        """Return what rank 0 has printed, without what NCCL reports, and log the network once it is known."""
        was = self._nccl.network
        rest = self._nccl.strip(data)
        network = self._nccl.network
        if network is not None and was is None:
            devices = f" devices={network.devices}" if network.devices else ""
            self._log(f"NCCL uses transport={network.transport.value} name={network.name}{devices}")
        return rest

    def _start_failure(self, error: OSError, link: OperatorLink) -> Failure:
        # What has run in this container, or fails because something is missing for now, may run again, if not here.
        code = FAILED_CODE if self._group.has_run else UNSTARTABLE_CODES.get(error.errno, FAILED_CODE)
        if isinstance(error, SetUpError):
            reason = str(error.strerror)
        else:
            program = self._command.words[0]
            fix = missing_fix(program) if error.errno == errno.ENOENT else ""
            reason = f"cannot start {program}: {error.strerror}{fix}"
        self._log(reason)
        failure = Failure(code, write(Termination(Kind.NOT_STARTED, exit_code=code), reason), time.monotonic())
        link.report_failure(failure)
        return failure
