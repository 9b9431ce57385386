"""Random schedules of faults, from a seed, and what has to be so at their end."""

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.attempts.attempt_simulation import NODES, AttemptSimulation, InvariantError
from tests.simulation.attempts.state import PLENTY, SIZES
from trainyard.api.recovery import RestartScope
from trainyard.api.status import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 120
PATIENCE = 1500


def play(seed: int) -> AttemptSimulation:
    """One schedule. Raises InvariantError where a law does not hold, or where nothing gets well after the last fault."""
    random = Random(seed)  # noqa: S311 - a schedule, no secret
    world = AttemptSimulation(
        random,
        workers=random.randint(1, 4),
        takes_part=random.random() < 0.7,
        elastic=random.choice([None, None, *SIZES]),
        min_restart_scope=random.choice([RestartScope.PROCESS, RestartScope.PROCESS, RestartScope.CONTAINER]),
        restartable=random.random() < 0.8,
        placed=seed % 2 == 0,
    )
    for _ in range(STEPS):
        _one_of(random, world, faults=True)
        _check(world)
    for node in [*world.silent]:
        world.answer(node)
    # An elastic group gets well with what there is, and whole again when there is room.
    for room in (random.randint(1, 4), PLENTY) if world.elastic else (PLENTY,):
        world.reclaim(room)
        _get_well(random, world)
    return world


def _get_well(random: Random, world: AttemptSimulation) -> None:
    """Nothing bad happens any more. Raises InvariantError where that does not suffice."""
    for _ in range(PATIENCE):
        if world.well:
            for _ in range(3):
                world.train(10)
            world.shrunk += world.room < world.workers
            return
        _one_of(random, world, faults=False)
        _check(world)
    raise InvariantError(
        f"not well after the last fault, with room for {world.room}: {world.status.dump()}, {world.agents}, {world.pods}"
    )


def _one_of(random: Random, world: AttemptSimulation, *, faults: bool) -> None:
    """Something happens."""
    pods = [*world.pods]
    usual: list[tuple[float, Callable[[], object]]] = [
        (6, world.work),
        (4, world.run_pods),
        (2, lambda: world.tick(random.choice([0.1, 1, 5, 10]))),
    ]
    if pods:
        usual += [(12, lambda: world.call(random.choice(pods))), (8, lambda: world.advance(random.choice(pods)))]
    bad: list[tuple[float, Callable[[], object]]] = [
        (0.5, world.die),
        (0.3, lambda: world.answer(random.choice(NODES))),
        (0.15, lambda: world.resize(random.randint(1, 4))),
    ]
    if world.elastic:
        bad.append((0.15, lambda: world.reclaim(random.randint(1, 6))))
    if pods:
        uid = random.choice(pods)
        bad += [
            (1.0, lambda: world.fail(uid)),
            (0.5, lambda: world.fail(uid, victim=True)),
            (0.5, lambda: world.ask_to_go(uid)),
            (0.3, lambda: world.end(uid, 137)),
            (0.5, lambda: world.hang_up(uid)),
            (0.2, lambda: setattr(world.agents[uid], "stubborn", True)),
            (0.2, lambda: world.fall_silent(world.pods[uid].node or NODES[0])),
        ]
    if world.min_restart_scope is RestartScope.CONTAINER and pods:
        # Containers restart where it is ranks that fail.
        bad = [*((weight / 15, do) for weight, do in bad), (1.5, lambda: world.fail(random.choice(pods)))]
    if world.takes_part:
        # To come to an end together takes its time without other faults. Without an operator too, for longer than ranks wait.
        bad = [*((weight / 5, do) for weight, do in bad), (0.5, lambda: world.tick(25))]
        if pods:
            bad.append((0.4, lambda: world.ask_to_go(random.choice(pods))))
    chosen = usual + bad if faults else [*usual, (1, lambda: world.tick(30))]
    random.choices([do for _, do in chosen], [weight for weight, _ in chosen])[0]()


def _check(world: AttemptSimulation) -> None:
    """What has to be so at any time."""
    status = world.status
    if status.finished:
        raise InvariantError(f"the job is over: {status.conditions}")
    ahead = [agent.attempt for agent in world.agents.values() if agent.attempt > status.attempt]
    if ahead:
        raise InvariantError(f"an agent is at attempt {ahead[0]}, and stored is {status.attempt}")
    if status.phase is Phase.RUNNING and status.awaiting_rendezvous:
        raise InvariantError("the phase is Running while the workers wait for each other")
    counted = status.restarts.failures + status.restarts.disruptions + status.restarts.resizes
    if counted != status.attempt - 1:
        raise InvariantError(f"{counted} causes for {status.attempt - 1} ends")
