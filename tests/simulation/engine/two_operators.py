"""Random schedules for two operators, of which only the leader may write."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.simulation.engine.engine_simulation import EngineSimulation
from tests.simulation.engine.network_faults import Fault, Planned
from tests.simulation.engine.state_machine import LONGEST_SLOW, NUMBER, Schedule


class TwoOperators(Schedule):
    """Two operators. Faults hit the leader more often than the standby."""

    processes = 2

    @rule(
        which=NUMBER,
        seconds=st.sampled_from([14.0, 20.0, 40.0]),
        slowed=st.sampled_from(["PUT trainingjobs", "DELETE pods", "POST pods"]),
    )
    def the_leader_is_frozen_amid_a_restart(self, which: int, seconds: float, slowed: str) -> None:
        """With a request on its way that arrives when another one may lead."""

        def act(world: EngineSimulation) -> None:
            if pod := self._running(which):
                world.network_faults.planned.append(Planned(Fault.SLOW, slowed))
                world.life.end(pod, 1)
                world.run(0.5)
            for place in world.leaders():
                world.freeze(place, seconds)

        self._then(LONGEST_SLOW, act)
