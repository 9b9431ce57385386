"""Which of the operator's rights were used, by the audit logs of all API servers of a test run.

Each control plane leaves what it has seen in the folder that `TRAINYARD_AUDIT` names; `python -m tests.support.rights FOLDER` adds it up,
and fails where the chart grants a right that no test has used.
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
from tests.unit.helm.chart import Chart, Release
from tests.unit.helm.test_permissions import grants

FOLDER: Final = "TRAINYARD_AUDIT"
EVERYTHING: Final = {"networkPolicy": {"jobs": {"enabled": True}}}
ROLES: Final = (("ClusterRole", "trainyard"), ("Role", "trainyard-leader-election"))
OWNING: Final = "cannot set blockOwnerDeletion"
"""What is said to who lacks `update` on the finalizers of an owner. That right is no request of its own: an admission plugin asks for it."""

Right = tuple[str, str, str]
"""Group, resource and verb."""


def used(lines: Iterable[str]) -> Counter[Right]:
    """How often each right was used, by the lines of an audit log."""
    found: Counter[Right] = Counter()
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


def keep(log: Path) -> None:
    """Leave what this audit log says, where somebody asks for it."""
    if (folder := os.environ.get(FOLDER)) and log.exists():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with log.open() as lines:
            rows = [[*right, count] for right, count in used(lines).items()]
        (Path(folder) / f"{secrets.token_hex(4)}.json").write_text(json.dumps(rows))


def granted(release: Release) -> set[Right]:
    """All that the chart grants to the operator."""
    return {
        (group, resource.removesuffix("/trainyard"), verb)
        for role in ROLES
        for (group, resource), verbs in grants(release.one(*role)).items()
        for verb in verbs
    }


def main(words: list[str]) -> int:
    """Print how often each right was used. Returns the exit code: 1 where one never was."""
    rows = [row for path in Path(words[0]).glob("*.json") for row in json.loads(path.read_text())]
    counted: Counter[Right] = Counter()
    for group, resource, verb, count in rows:
        counted[group, resource, verb] += count
    rights = sorted(granted(Chart(ensure("helm")["helm"]).render(EVERYTHING)))
    for group, resource, verb in rights:
        sys.stdout.write(f"{counted[group, resource, verb]:>8} {verb:<7} {resource}{group and '.'}{group}\n")
    never = [right for right in rights if not counted[right]]
    sys.stdout.write(f"rights of the operator: {len(rights)}, of which {len(never)} were not used\n")
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
