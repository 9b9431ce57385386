"""Count how often each permission of the operator was used, from the audit logs of all API servers of a test run.

Each control plane writes its counts to the directory that `TRAINYARD_AUDIT` names.
`python -m tests.support.permission_audit DIRECTORY` adds them up, and fails where the chart grants a permission that no
test has used.
"""

import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dev.localcluster.tools import ensure
from tests.support.control_plane import OPERATOR
from tests.support.granted_permissions import ROLES, grants, without_name
from tests.unit.helm.chart import Chart, Release

FOLDER: Final = "TRAINYARD_AUDIT"
EVERYTHING: Final = {
    "networkPolicy": {"jobs": {"enabled": True}},
    "gangs": {"schedulers": ["native", "volcano", "coscheduling"]},
    "kueue": {"enabled": True},
}
OWNING: Final = "cannot set blockOwnerDeletion"
"""The error of an account that may not `update` the finalizers of an owner. An admission plugin checks this permission;
no request of its own does."""

Permission = tuple[str, str, str]
"""Group, resource and verb."""


def used(lines: Iterable[str]) -> Counter[Permission]:
    """Return how often each permission was used, from the lines of an audit log."""
    found: Counter[Permission] = Counter()
    for line in lines:
        if OPERATOR not in line:
            continue
        entry: dict[str, Any] = json.loads(line)
        about, answer = entry.get("objectRef", {}), entry.get("responseStatus", {})
        if entry["user"].get("username") != OPERATOR or "resource" not in about:
            continue
        if OWNING in answer.get("message", ""):
            found["trainyard.dev", "trainingjobs/finalizers", "update"] += 1
        elif answer.get("code") != 403:
            resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
            found[about.get("apiGroup", ""), resource, entry["verb"]] += 1
    return found


def record(log: Path) -> None:
    """Write the counts of an audit log, if `TRAINYARD_AUDIT` is set."""
    if (folder := os.environ.get(FOLDER)) and log.exists():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with log.open() as lines:
            rows = [[*permission, count] for permission, count in used(lines).items()]
        (Path(folder) / f"{secrets.token_hex(4)}.json").write_text(json.dumps(rows))


def granted(release: Release) -> set[Permission]:
    """Return all permissions that the chart grants to the operator."""
    return {
        (group, without_name(resource), verb)
        for role in (*ROLES, ("ClusterRole", "trainyard-kueue"))
        for (group, resource), verbs in grants(release.one(*role)).items()
        for verb in verbs
    }


def main(words: list[str]) -> int:
    """Print how often each permission was used. Return the exit code: 1 where one was never used."""
    rows = [row for path in Path(words[0]).glob("*.json") for row in json.loads(path.read_text())]
    counted: Counter[Permission] = Counter()
    for group, resource, verb, count in rows:
        counted[group, resource, verb] += count
    permissions = sorted(granted(Chart(ensure("helm")["helm"]).render(EVERYTHING)))
    for group, resource, verb in permissions:
        sys.stdout.write(f"{counted[group, resource, verb]:>8} {verb:<7} {resource}{group and '.'}{group}\n")
    never = [permission for permission in permissions if not counted[permission]]
    sys.stdout.write(f"permissions of the operator: {len(permissions)}, not used: {len(never)}\n")
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
