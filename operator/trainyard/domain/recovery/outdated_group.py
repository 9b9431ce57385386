"""Replace a group whose pods were created from an earlier template than the job's. Pure.

The API server admits such a change only while the job is suspended. The operator may not see that suspension: it was away, or
all writes came within one moment.
"""

from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Clear, Remove, Restart
from trainyard.domain.state.snapshot import Snapshot

MESSAGE = "the job was suspended, changed and resumed: its pods have an earlier template"


def replace_outdated_group(snapshot: Snapshot) -> Restart | None:
    """Return the restart with new pods for all workers, as after a suspension; None where all pods have the job's template."""
    if not snapshot.outdated:
        return None
    return Restart(
        Reason.TEMPLATE_CHANGED,
        MESSAGE,
        changes={"joining": None},
        afresh=True,
        # The image may have changed: the agent may be able to run in it.
        conditions=[Remove(C.AGENT_INJECTED), Clear(C.RESIZING, Reason.TEMPLATE_CHANGED, MESSAGE)],
    )
