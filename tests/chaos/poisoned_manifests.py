"""Invalid and hostile manifests: of TrainingJobs, of pods with Trainyard's labels, and of statuses."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

Json = dict[str, Any]
Change = Callable[[Json], None]

EVERY_CHARACTER: Final = "".join(map(chr, [*range(0x250), 0x202E, 0x2028, 0xFEFF, 0xFFFD, 0x1F4A5]))
"""Control characters, the NUL, right-to-left marks, what looks like a line end, and an explosion."""
DIGITS: Final = "1" + "0" * 1_000_000
FAR: Final = "9999-12-31T23:59:59Z"
LONG_AGO: Final = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Case:
    """One poison. `messages` are texts that the server's refusal, or the job's conditions and events, must hold; none:
    it runs.
    """

    name: str
    change: Change
    refused: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        return self.name


def manifest(name: str = "poison", replicas: int = 1) -> Json:
    """A job that is well."""
    container = {"name": "main", "image": "trainer:1"}
    spec = {"framework": "torch", "replicas": replicas, "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


def metadata(**fields: Any) -> Change:
    return lambda job: job["metadata"].update(deepcopy(fields))


def spec(**fields: Any) -> Change:
    return lambda job: job["spec"].update(deepcopy(fields))


def template(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"].update(deepcopy(fields))


def pod(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"].update(deepcopy(fields))


def main(**fields: Any) -> Change:
    return lambda job: job["spec"]["template"]["spec"]["containers"][0].update(deepcopy(fields))


def env(*variables: Any) -> Change:
    return main(env=[*variables])


def gpus(amount: Any) -> Change:
    return main(resources={"limits": {"nvidia.com/gpu": amount}})


def deep(levels: int) -> Json:
    """Objects within objects."""
    value: Json = {}
    for _ in range(levels):
        value = {"a": value}
    return value


JOBS: Final = (
    Case("an annotation of 200 kB", metadata(annotations={"note": "x" * 200_000})),
    Case(
        "an annotation of 300 kB",
        metadata(annotations={"note": "x" * 300_000}),
        refused=("metadata.annotations", "long"),
    ),
    Case("every character in an annotation", metadata(annotations={"note": EVERY_CHARACTER})),
    Case(
        "another framework's broken memory",
        metadata(annotations={"kopf.zalando.org/last-handled-configuration": "{broken", "kopf.zalando.org/p": "[[["}),
    ),
    Case(
        "our labels on the job, all wrong",
        metadata(labels={"trainyard.dev/job-uid": "x", "trainyard.dev/attempt": "no"}),
    ),
    Case("a label with a space", metadata(labels={"a": "not a label"}), refused=("metadata.labels", "not a label")),
    Case("a finalizer of somebody else", metadata(finalizers=["example.com/never"])),
    Case(
        "an owner that is not there",
        metadata(ownerReferences=[{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]),
        refused=("uid",),
    ),
    Case("a name of 64 characters", metadata(name="a" * 64), refused=("metadata.name",)),
    Case("a name with dots", metadata(name="my.job"), refused=("metadata.name", "a-z, 0-9 and -")),
    Case("a name of another alphabet", metadata(name="работа"), refused=("metadata.name",)),
    Case("no replicas", spec(replicas=0), refused=("spec.replicas", "greater than or equal to 1")),
    Case("replicas without end", spec(replicas=10**30), refused=("spec.replicas",)),
    Case("half a replica", spec(replicas=1.5), refused=("spec.replicas", "integer")),
    Case("replicas in words", spec(replicas="three"), refused=("spec.replicas", "integer")),
    Case("replicas of null", spec(replicas=None)),
    Case("no template", lambda job: job["spec"].pop("template"), refused=("spec.template",)),
    Case("a template that is a list", spec(template=[]), refused=("spec.template", "object")),
    Case("no containers", pod(containers=[]), refused=("spec.template.spec.containers",)),
    Case("a container of null", pod(containers=[None]), refused=("spec.template.spec.containers",)),
    Case(
        "a container without a name",
        pod(containers=[{"image": "x"}]),
        refused=("spec.template.spec.containers", "name"),
    ),
    Case("two containers of one name", pod(containers=[{"name": "a", "image": "b"}] * 2), refused=("Duplicate",)),
    Case("a container's name that is none", main(name="Not A Name!"), refused=("containers[0].name",)),
    Case("an image without a name", main(image=" "), messages=("InvalidTemplate", "image")),
    Case("an image of 100 kB", main(image="x" * 100_000)),
    Case("a variable without a name", env({"name": "", "value": "x"}), messages=("InvalidTemplate", "env")),
    Case("a variable's name with =", env({"name": "A=B", "value": "x"}), messages=("InvalidTemplate", "env")),
    Case(
        "a variable named by every character",
        env({"name": EVERY_CHARACTER, "value": "x"}),
        messages=("InvalidTemplate", "env"),
    ),
    Case("a variable with every character", env({"name": "A", "value": EVERY_CHARACTER})),
    Case("a variable that is null", env(None), refused=("env",)),
    Case(
        "a variable with two values",
        env({"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        messages=("InvalidTemplate", "valueFrom"),
    ),
    Case("a variable of 200 kB", env({"name": "A", "value": "x" * 200_000})),
    Case(
        "a variable of 500 kB", env({"name": "A", "value": "x" * 500_000}), messages=("InvalidSpec", "limit of 256 KiB")
    ),
    Case("five thousand variables", env(*({"name": f"A{n}", "value": "x"} for n in range(5000)))),
    Case(
        "our variables, all wrong",
        env({"name": "RANK", "value": "-1"}, {"name": "PET_NNODES", "value": "∞"}, {"name": "WORLD_SIZE", "value": ""}),
    ),
    Case("a million digits of GPUs", gpus(DIGITS), refused=("nvidia.com/gpu", "64")),
    Case("GPUs to the millionth power", gpus("1e1000000")),
    Case("more GPUs than atoms", gpus("9" * 40), messages=("InvalidTemplate", "nvidia.com/gpu")),
    Case("half a GPU", gpus("500m"), messages=("InvalidTemplate", "nvidia.com/gpu")),
    Case("fewer than no GPUs", gpus("-1"), messages=("InvalidTemplate", "nvidia.com/gpu")),
    Case("GPUs in words", gpus("eight"), refused=("limits.nvidia.com/gpu",)),
    Case("GPUs in every character", gpus(EVERY_CHARACTER[:64]), refused=("limits.nvidia.com/gpu",)),
    Case("GPUs as an object", gpus({"eight": 8}), refused=("nvidia.com/gpu",)),
    Case("GPUs of null", gpus(None)),
    Case(
        "processes in words",
        spec(processesPerReplica="many"),
        refused=("spec.processesPerReplica", "number from 1 to 1024"),
    ),
    Case(
        "a template's label with a space",
        template(metadata={"labels": {"a": "not a label"}}),
        messages=("InvalidTemplate", "metadata.labels"),
    ),
    Case("a template's labels of null", template(metadata={"labels": None, "annotations": None})),
    Case(
        "a template with our labels",
        template(metadata={"labels": {"trainyard.dev/job-uid": "x", "trainyard.dev/attempt": "99"}}),
    ),
    Case(
        "a template's annotation of 300 kB",
        template(metadata={"annotations": {"note": "x" * 300_000}}),
        messages=("InvalidSpec", "limit of 256 KiB"),
    ),
    Case("a template with our annotation", template(metadata={"annotations": {"trainyard.dev/workers": "many"}})),
    Case("no such priority class", pod(priorityClassName="no-such-class"), messages=("PodsForbidden", "no-such-class")),
    Case("no such account", pod(serviceAccountName="no-such-account"), messages=("PodsForbidden", "no-such-account")),
    Case("a toleration that is null", pod(tolerations=[None]), refused=("tolerations",)),
    Case(
        "a toleration that is none",
        pod(tolerations=[{"operator": "Sometimes"}]),
        messages=("InvalidTemplate", "tolerations"),
    ),
    Case(
        "a node selector with every character",
        pod(nodeSelector={"a": EVERY_CHARACTER}),
        messages=("InvalidTemplate", "nodeSelector"),
    ),
    Case("two volumes of one name", pod(volumes=[{"name": "a", "emptyDir": {}}] * 2), refused=("Duplicate",)),
    Case("a volume for our own volume's name", pod(volumes=[{"name": "trainyard-shm", "emptyDir": {}}])),
    Case(
        "a mount of no volume",
        main(volumeMounts=[{"name": "none", "mountPath": "/x"}]),
        messages=("InvalidTemplate", "volumeMounts"),
    ),
    Case("a mount without a path", main(volumeMounts=[{"name": "none"}]), refused=("mountPath",)),
    Case("one port twice", main(ports=[{"containerPort": 70000}]), messages=("InvalidTemplate", "containerPort")),
    Case("objects five hundred levels deep", lambda job: job["spec"]["template"]["spec"].update(affinity=deep(500))),
    Case("an unknown field of 100 kB", pod(nonsense="x" * 100_000)),
    Case(
        "a deadline in a thousand years",
        spec(lifecycle={"activeDeadlineSeconds": 10**11}),
        refused=("activeDeadlineSeconds",),
    ),
    Case("a grace period beyond time", pod(terminationGracePeriodSeconds=2**62)),
    Case(
        "a manifest of 1.3 MB",
        env(*({"name": f"A{n}", "value": "x" * 1000} for n in range(1300))),
        messages=("InvalidSpec", "limit of 256 KiB"),
    ),
    Case("no manifest at all", lambda job: job.update(spec=None), refused=("spec",)),
)
