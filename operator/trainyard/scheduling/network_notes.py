"""Say what a network profile has set, and what it has not, in the words of events and conditions. Pure."""

from collections.abc import Sequence

from trainyard.api.spec import TrainingJobSpec
from trainyard.scheduling.network_choice import Choice
from trainyard.scheduling.network_profile import NamedProfile
from trainyard.scheduling.worker_network import Facts, privileges

MAX_LISTED = 800
"""Characters of a list in an event, whose note holds 1,024 bytes."""


def applied_note(choice: Choice, facts: Facts) -> str:
    """Return what the profile has set in the workers; empty where the job has none."""
    if choice.network is None:
        return f"network.profile auto: {choice.note}" if choice.note else ""
    network = choice.network
    why = f" (auto: {choice.proof})" if choice.proof else ""
    done = f"sets {_listed(facts.done)}" if facts.done else "sets nothing, since the template has all of it"
    advice = f"; {network.profile.advice}" if network.profile.advice else ""
    return f"network.profile {network.name}{why} {done}{advice}"


def conflict_notes(network: NamedProfile, facts: Facts) -> list[str]:
    """Return what of the profile is not set: values of the template that stay, and what cannot be set."""
    notes = []
    if facts.kept:
        notes.append(
            f"the template keeps {_listed(facts.kept)}, where network.profile {network.name} has other values;"
            " remove them, unless they are set on purpose"
        )
    if facts.left_out:
        notes.append(f"network.profile {network.name} does not set {_listed(facts.left_out)}")
    return notes


def refused_because(choice: Choice, spec: TrainingJobSpec) -> str:
    """Return what of the profile a pod security policy may have refused, with what to do; empty where it sets nothing of the kind."""
    added = privileges(choice.network.profile) if choice.network else []
    if choice.network is None or not added:
        return ""
    return (
        f"network.profile {choice.network.name} adds {_listed(added)}, which the baseline standard refuses: have the namespace"
        f" labelled pod-security.kubernetes.io/enforce=privileged, or remove network.profile {spec.network.profile}. "
    )


def invalid_because(choice: Choice) -> str:
    """Return what may make a pod invalid beside its template: a profile of the platform team, which can be repaired. Empty: nothing."""
    if choice.network is None or not choice.network.of_chart:
        return ""
    name = choice.network.name
    return f"a pod with network.profile {name} is not valid; correct the template, or networkProfiles.{name} of the chart: "


def _listed(values: Sequence[str]) -> str:
    """Return a list; of a long one, the names without their values."""
    whole = ", ".join(values)
    if len(whole) <= MAX_LISTED:
        return whole
    names = ", ".join(value.partition("=")[0] for value in values)
    return names if len(names) <= MAX_LISTED else f"{names[: MAX_LISTED - 1]}…"
