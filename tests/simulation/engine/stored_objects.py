"""What the stored objects say, read again from their JSON: the judge must not see with the operator's own eyes."""

from tests.support.fake_cluster import Json
from trainyard.api.constants import ANNOTATION_WORKERS, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_UID
from trainyard.kube.resource import PODS, SERVICES

JOBS_PLACE = ("trainyard.dev", "v1alpha1", "trainingjobs")
PODS_PLACE = (PODS.group, PODS.version, PODS.plural)
SERVICES_PLACE = (SERVICES.group, SERVICES.version, SERVICES.plural)
TERMINAL = frozenset({"Succeeded", "Failed"})
SIGNALLED = frozenset({137, 143})
LOST_CONTAINER = "ContainerStatusUnknown"


def uid(obj: Json) -> str:
    return str(obj["metadata"]["uid"])


def name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def going(obj: Json) -> bool:
    """Whether its deletion was asked for."""
    return "deletionTimestamp" in obj["metadata"]


def owner(obj: Json) -> str | None:
    """The UID of the job that it belongs to."""
    owners = obj["metadata"].get("ownerReferences") or [{}]
    found: str | None = owners[0].get("uid")
    return found


# Pods


def rank(pod: Json) -> int:
    return int(pod["metadata"]["labels"][LABEL_INDEX])


def attempt(pod: Json) -> int:
    return int(pod["metadata"]["labels"][LABEL_ATTEMPT])


def workers(pod: Json) -> int:
    """The size of the group it was made for."""
    return int(pod["metadata"]["annotations"][ANNOTATION_WORKERS])


def labelled(pod: Json) -> str | None:
    """The UID of the job that its label names."""
    found: str | None = pod["metadata"].get("labels", {}).get(LABEL_JOB_UID)
    return found


def node(pod: Json) -> str | None:
    found: str | None = pod["spec"].get("nodeName")
    return found


def phase(pod: Json) -> str:
    return str(pod["status"]["phase"])


def end(pod: Json) -> Json | None:
    """How its container ended."""
    for container in pod["status"].get("containerStatuses", ()):
        found: Json | None = container["state"].get("terminated")
        return found
    return None


def running(pod: Json) -> bool:
    return any("running" in container["state"] for container in pod["status"].get("containerStatuses", ()))


def ended(pod: Json) -> bool:
    """Whether nothing of it runs or will run."""
    return phase(pod) in TERMINAL or end(pod) is not None


def succeeded(pod: Json) -> bool:
    found = end(pod)
    return found is not None and found["exitCode"] == 0


def targeted(pod: Json) -> bool:
    """Whether it bears the condition DisruptionTarget."""
    return any(c["type"] == "DisruptionTarget" for c in pod["status"].get("conditions", ()))


def overfull(pod: Json) -> bool:
    """Whether its node ended it for what it did itself."""
    return pod["status"].get("reason") == "Evicted" and not targeted(pod)


def forsaken(pod: Json) -> bool:
    """Whether it was given up with its node, which has not reported it since."""
    conditions = {c["type"]: c for c in pod["status"].get("conditions", ())}
    says = [conditions.get(kind, {}).get("status") for kind in ("Ready", "ContainersReady")]
    by = conditions.get("DisruptionTarget", {}).get("reason")
    return going(pod) and says == ["False", "True"] and by == "DeletionByTaintManager"


# Jobs


def holds(job: Json, kind: str) -> bool:
    """Whether a condition of the stored status is True."""
    conditions = job.get("status", {}).get("conditions", ())
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def finished(job: Json) -> bool:
    return holds(job, "Complete") or holds(job, "Failed")


def stored_attempt(job: Json) -> int:
    return int(job.get("status", {}).get("attempt", 1))


def stored_successes(job: Json) -> set[int]:
    """The ranks of the stored attempt whose success its status keeps."""
    stored = job.get("status", {}).get("internal", {}).get("succeeded") or {}
    if stored.get("attempt") != stored_attempt(job):
        return set()
    return {rank for run in stored["workers"] for rank in range(run["first"], run["last"] + 1)}


def size(job: Json) -> int:
    """How many workers it is to have: the most that are allowed and requested."""
    replicas: int = job["spec"]["replicas"]
    sizes: list[int] = (job["spec"].get("elastic") or {}).get("sizes", [replicas])
    return max(n for n in sizes if n <= replicas)


def lifecycle(job: Json, field: str) -> object:
    return job["spec"].get("lifecycle", {}).get(field)


def foreign(job: Json) -> bool:
    """Whether another controller manages it."""
    return job["spec"].get("managedBy") is not None


def loses_status(old: Json, new: Json) -> bool:
    """Whether the whole status is taken away."""
    return bool(old.get("status")) and not new.get("status")
