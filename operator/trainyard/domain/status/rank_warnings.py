"""Warn of ranks that failed under a command that succeeded, of ranks that formed several groups in place of one, and of RDMA unused. Pure.

None of them ends an attempt: the container's exit code says that all is well. The first is read from the termination message of
the worker, the second from the reports of all agents. A group counts as split only where two processes are rank 0 at the same time.
So parameter servers, evaluation beside the training, and a group that has yet to form are none.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from posixpath import basename

from trainyard.api.reasons import Reason
from trainyard.api.spec import Framework
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.decisions import Clear, ConditionUpdate, Event, Outcome, SetTrue, soonest
from trainyard.domain.state.rdma import EFA, RDMA_RESOURCES, requested_of
from trainyard.domain.state.roles import member
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.termination import Kind
from trainyard.domain.state.worker_views import FormedGroups, State
from trainyard.domain.wording import counted

HIDDEN_FIX = (
    "use `set -o pipefail` in bash before a pipeline, and `exec` or `&&` in place of `;`;"
    " with recovery.hiddenFailures: Fail such a worker fails"
)
ACCELERATE_LAUNCHERS = frozenset(
    {"accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"}
)
FABRIC_LAUNCHERS = frozenset({"fabric", "lightning", "lightning.fabric.cli", "lightning_fabric.cli"})
TORCH_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})

START_OF_RANKS = timedelta(minutes=10)
"""How long a command may prepare before it starts its ranks. A program that is alone for longer is taken for the whole training."""


def with_rank_warnings(outcome: Outcome, snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome with these warnings. What the outcome itself says of such a condition comes last, and counts."""
    outcome = _looked_at_again(outcome, snapshot, now)
    found = (_hidden_failure(snapshot), _split_group(snapshot, now), _rdma_unused(snapshot))
    updates = [update for update in found if update]
    if not updates:
        return outcome
    events = _new_warnings(snapshot.job.status, updates)
    return replace(outcome, conditions=[*updates, *outcome.conditions], events=[*events, *outcome.events])


def _hidden_failure(snapshot: Snapshot) -> ConditionUpdate | None:
    """Return the warning of the first rank that failed although the command of its worker succeeded."""
    hidden = [(pod, pod.exit) for pod in snapshot.current if pod.exit and pod.exit.kind is Kind.HIDDEN]
    if not hidden:
        return None
    pod, end = hidden[0]
    where = f" on {pod.node}" if pod.node else ""
    raised = f" (at {end.location})" if end.location else ""
    others = f"; so did {counted(len(hidden) - 1, 'other worker')}" if len(hidden) > 1 else ""
    what = f"{end.headline}{raised}, but the command of its container exited with code 0{others}"
    return SetTrue(
        C.FAILURE_HIDDEN,
        Reason.RANK_FAILURE_HIDDEN,
        f"{member(pod.index)} (pod {pod.name}{where}): {what}; {HIDDEN_FIX}",
    )


def _split_group(snapshot: Snapshot, now: datetime) -> ConditionUpdate | None:
    """Return whether the ranks of the current attempt train as one group; None where that is not known."""
    job = snapshot.job
    workers, each = snapshot.size.current, job.processes
    expected = workers * each
    if not job.spec.framework.forms_one_group or expected == 1:
        return None
    formed = [report.groups for report in snapshot.attempt_reports if report.groups and report.index < workers]
    sizes, leaders = {groups.size for groups in formed}, sum(groups.leaders for groups in formed)
    if leaders < 2 or len(sizes) > 1:
        if sizes == {expected}:
            return Clear(C.GROUP_SPLIT, Reason.GROUP_FORMED, f"the ranks formed one group of {expected}")
        return _one_process_each(snapshot, formed) if formed else _one_program_each(snapshot, now)
    (size,) = sizes
    message = (
        f"{leaders} groups of {counted(size, 'rank')} train beside each other; expected was one group of {expected} ranks"
        f" (replicas x processesPerReplica: {workers} x {each}); {_advice(job, formed, workers)};"
        " if the workers are to train independently, set framework: none"
    )
    return SetTrue(C.GROUP_SPLIT, Reason.GROUPS_SPLIT, message)


def _one_program_each(snapshot: Snapshot, now: datetime) -> ConditionUpdate | None:
    """Return the warning of workers that each run one program in place of several ranks, and form no group at all."""
    job, workers = snapshot.job, snapshot.size.current
    if not _runs_one_program_each(snapshot) or not (_all_succeeded(snapshot) or _ran_long(snapshot, now)):
        return None
    return SetTrue(
        C.GROUP_SPLIT,
        Reason.GROUPS_SPLIT,
        f"the command runs one training process in each worker, without a process group; expected was one group of"
        f" {workers * job.processes} ranks (replicas x processesPerReplica: {workers} x {job.processes}):"
        " start the program with torchrun, or as the last command of the script with exec python;"
        " if one process uses all accelerators of a worker, set processesPerReplica: 1",
    )


def _runs_one_program_each(snapshot: Snapshot) -> bool:
    """Return whether each worker, of which several ranks are expected, has reported one program with torch and no group."""
    if snapshot.job.processes == 1 or not snapshot.job.spec.framework.forms_torch_group:
        return False
    alone = {each.index for each in snapshot.attempt_reports if each.torch_processes == 1 and each.groups is None}
    return alone.issuperset(range(snapshot.size.current))


def _all_succeeded(snapshot: Snapshot) -> bool:
    succeeded = {pod.index for pod in snapshot.current if pod.state is State.SUCCEEDED}
    return succeeded.issuperset(range(snapshot.size.current))


def _ran_long(snapshot: Snapshot, now: datetime) -> bool:
    since = snapshot.job.status.running_time
    return since is not None and now - since >= START_OF_RANKS


def _looked_at_again(outcome: Outcome, snapshot: Snapshot, now: datetime) -> Outcome:
    """Return the outcome with a reconcile at the time at which programs that are alone count as the whole training."""
    since = snapshot.job.status.running_time
    if since is None or not _runs_one_program_each(snapshot) or _ran_long(snapshot, now):
        return outcome
    waits = [(since + START_OF_RANKS - now).total_seconds()]
    waits += [] if outcome.requeue_after is None else [outcome.requeue_after]
    return replace(outcome, requeue_after=soonest(waits))


def _one_process_each(snapshot: Snapshot, formed: Sequence[FormedGroups]) -> ConditionUpdate | None:
    """Return the warning of workers that have all succeeded with one process each, where several were expected.

    Only then is it certain that no other rank was about to join.
    """
    job, workers = snapshot.job, snapshot.size.current
    if job.processes == 1 or {groups.size for groups in formed} != {workers} or not _all_succeeded(snapshot):
        return None
    return SetTrue(
        C.GROUP_SPLIT,
        Reason.GROUPS_SPLIT,
        f"the ranks formed a group of {workers}; expected was one group of {workers * job.processes} ranks"
        f" (replicas x processesPerReplica: {workers} x {job.processes}): the command started one process in each worker;"
        " start the program with torchrun, or as the last command of the script with exec python,"
        " or set processesPerReplica: 1",
    )


def _advice(job: JobView, formed: Sequence[FormedGroups], workers: int) -> str:
    """Return what to change so that the ranks form one group."""
    if job.spec.framework is Framework.JAX:
        return (
            "call jax.distributed.initialize() without arguments in each process, before anything else of JAX,"
            " and set none of the variables of ranks yourself"
        )
    if any(groups.leaders > 1 for groups in formed):
        return "the command runs once for each process and starts its own ranks: set processesPerReplica: 1"
    main = job.spec.template["spec"]["containers"][0]
    words = [
        basename(word) for text in (*(main.get("command") or ()), *(main.get("args") or ())) for word in text.split()
    ]
    if TORCH_LAUNCHERS.intersection(words):
        return "start torchrun without --standalone, --nnodes and --master_addr: it finds all workers by the variables PET_*"
    if FABRIC_LAUNCHERS.intersection(words):
        return (
            "make fabric run the command itself, without a shell before it and without --num-nodes, --node-rank and"
            " --main-address: the agent adds them; in a shell, use"
            f" --devices {job.processes} --num-nodes $PET_NNODES --node-rank $NODE_RANK"
            " --main-address $MASTER_ADDR --main-port $MASTER_PORT"
        )
    if "tune" in words:
        return f"start tune run with --nproc_per_node {job.processes}, and without --standalone and --nnodes"
    if ACCELERATE_LAUNCHERS.intersection(words):
        flags = f"--num_machines {workers} --num_processes {workers * job.processes} --machine_rank $NODE_RANK"
        return (
            "make accelerate launch the command itself, without a shell before it and without --num_machines: the agent adds the"
            " place of the worker; or start the program with python and no launcher, or use"
            f" accelerate launch {flags} --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT"
        )
    if "deepspeed" in words:
        return (
            "make deepspeed the command itself, without a shell or wrapper before it and without --include, --exclude,"
            " --autotuning, --bind_cores_to_rank and --enable_each_rank_log: the agent then starts its ranks as one group"
        )
    return (
        "start the program with python or torchrun, and call init_process_group without a rank, a world size and an address"
        " of its own"
    )


def _rdma_unused(snapshot: Snapshot) -> ConditionUpdate | None:
    """Return whether requested devices for RDMA are unused; None where the network is not known or none are requested."""
    took = next((each.network for each in snapshot.attempt_reports if each.network), None)
    wanted = _fast_network(snapshot) if took else ""
    if took is None or not wanted:
        return None
    if not took.uses_sockets:
        return Clear(C.RDMA_UNUSED, Reason.RDMA_IN_USE, f"NCCL uses the network {took.name}")
    message = (
        f"{wanted}, but NCCL uses TCP (network {took.name});"
        " the image may lack libibverbs or the plugin of the cloud, or the container the capability IPC_LOCK"
    )
    return SetTrue(C.RDMA_UNUSED, Reason.TCP_IN_USE, message)


def _fast_network(snapshot: Snapshot) -> str:
    """Return how the job asks for another network than TCP: by a profile, or by devices of the main container. Empty: it does not."""
    network = snapshot.network
    if network.profile:
        return "" if network.sockets else f"network.profile is {network.profile}"
    devices = requested_of(snapshot.job.spec.template["spec"]["containers"][0], (*RDMA_RESOURCES, EFA))
    return f"the workers request {', '.join(devices)}" if devices else ""


def _new_warnings(status: TrainingJobStatus, updates: Sequence[ConditionUpdate]) -> list[Event]:
    """Return an event for each condition that becomes True."""
    return [
        Event("Warning", Reason(update.reason), update.message)
        for update in updates
        if isinstance(update, SetTrue) and not status.holds(update.kind)
    ]
