"""Builds the cluster's programs from pinned Go modules, once, into a folder named by the hash of the module files."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.localcluster import go_modules, go_toolchain
from dev.localcluster.disk import require_free
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.lock import exclusive
from dev.localcluster.paths import Paths, from_environment
from dev.localcluster.say import say

MODULES: Final = Path(__file__).parent / "tools"
KUBERNETES_VERSION: Final = "v1.36.3"
KUBERNETES_MINOR: Final = KUBERNETES_VERSION.split(".")[1]
BUILD_WAIT_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Module:
    """A folder with a go.mod of its own, so that the dependency graphs do not clash."""

    name: str
    packages: dict[str, str]  # program -> Go package
    about: str  # how long a cold build takes on 2 cores
    link: str = ""  # linker flags beside -s -w
    root: Path = MODULES  # the folder that holds the module's
    files: tuple[tuple[str, str], ...] = ()  # taken along from the sources: the Go module and the path in it
    tags: str = ""  # build tags

    @property
    def source(self) -> Path:
        """The module's folder."""
        return self.root / self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """Arguments of `go build`."""
        flags = ("-trimpath", "-buildvcs=false", "-mod=readonly", f"-ldflags=-s -w {self.link}".rstrip())
        return (*flags, f"-tags={self.tags}") if self.tags else flags

    @property
    def build_arguments(self) -> tuple[str, ...]:
        """What decides over the outcome beside the module's folder."""
        return (*self.flags, *(f"{origin}:{file}" for origin, file in self.files))


def _kubernetes_version_flags() -> str:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    variables = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in variables.items())


def _commands(prefix: str, *names: str) -> dict[str, str]:
    return {name: f"{prefix}/{name}" for name in names}


KUEUE_KINDS: Final = (
    *("admissionchecks", "clusterqueues", "cohorts", "localqueues", "multikueueclusters", "multikueueconfigs"),
    *("provisioningrequestconfigs", "resourceflavors", "topologies", "workloadpriorityclasses", "workloads"),
)
MODULE_LIST: Final = (
    Module(
        "kubernetes",
        _commands(
            "k8s.io/kubernetes/cmd",
            *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
        ),
        "6 min",
        _kubernetes_version_flags(),
    ),
    Module(
        "containerd",
        _commands("github.com/containerd/containerd/v2/cmd", "containerd", "containerd-shim-runc-v2", "ctr"),
        "80 s",
    ),
    Module(
        "cni",
        _commands("github.com/containernetworking/plugins/plugins/main", "bridge", "loopback")
        | _commands("github.com/containernetworking/plugins/plugins/ipam", "host-local")
        | _commands("github.com/containernetworking/plugins/plugins/meta", "portmap"),
        "5 s",
    ),
    Module("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, "20 s"),
    Module("coredns", {"coredns": "."}, "25 s"),
    Module("fakegpu", {"fakegpu": "."}, "5 s"),
    # As its Makefile has it: without, `helm template` and `helm lint` speak for Kubernetes 1.20. Helm 4 finds out by itself.
    Module(
        "helm",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        "30 s",
        " ".join(
            f"-X helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={value}"
            for package in ("chartutil", "lint/rules")
            for part, value in (("Major", "1"), ("Minor", KUBERNETES_MINOR))
        ),
    ),
    Module("helm4", {"helm4": "helm.sh/helm/v4/cmd/helm"}, "40 s"),
    Module("helm-docs", {"helm-docs": "github.com/norwoodj/helm-docs/cmd/helm-docs"}, "15 s"),
    Module("kubeconform", {"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"}, "5 s"),
    Module("kube-score", {"kube-score": "github.com/zegl/kube-score/cmd/kube-score"}, "15 s"),
    Module("conftest", {"conftest": "github.com/open-policy-agent/conftest"}, "2 min"),
    Module("helm-unittest", {"helm-unittest": "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"}, "60 s"),
    Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok", "stages": "./stages"}, "20 s"),
    Module("metrics-server", {"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"}, "60 s"),
    Module(
        "prometheus",
        _commands("github.com/prometheus/prometheus/cmd", "prometheus", "promtool"),
        "2 min",
        # Of some thirty kinds of service discovery, each with its cloud's libraries, the one that is used.
        tags="remove_all_sd,enable_kubernetes_sd",
    ),
    Module("prometheus-adapter", {"adapter": "sigs.k8s.io/prometheus-adapter/cmd/adapter"}, "60 s"),
    Module(
        "kueue",
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        "4 min",
        files=tuple(
            ("sigs.k8s.io/kueue", f"config/components/crd/bases/kueue.x-k8s.io_{kind}.yaml") for kind in KUEUE_KINDS
        ),
    ),
    Module("kube-router", {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}, "4 min"),
    Module(
        "cosign",
        {"cosign": "github.com/sigstore/cosign/v3/cmd/cosign"},
        "2 min",
        "-X sigs.k8s.io/release-utils/version.gitVersion=v3.1.3",
    ),
    # Gang schedulers. Their go.mod replaces the libraries of Kubernetes as their own modules do: 1.34 and 1.30.
    Module("scheduler-plugins", {"coscheduler": "sigs.k8s.io/scheduler-plugins/cmd/scheduler"}, "5 min"),
    Module(
        "volcano",
        {
            "volcano-scheduler": "volcano.sh/volcano/cmd/scheduler",
            "volcano-controller-manager": "volcano.sh/volcano/cmd/controller-manager",
        },
        "5 min",
    ),
    Module("registry", {"registry": "github.com/distribution/distribution/v3/cmd/registry"}, "80 s"),
    Module("syft", {"syft": "github.com/anchore/syft/cmd/syft"}, "2 min", "-X main.version=1.52.0"),
)
MODULE_OF: Final = {program: module for module in MODULE_LIST for program in module.packages}
SCALE: Final = ("kwok", "stages")
MONITORING: Final = ("metrics-server", "prometheus", "promtool", "adapter")
POLICIES: Final = ("kube-router",)
QUEUES: Final = ("kueue",)
CHART: Final = ("helm4", "helm-docs", "helm-unittest", "kubeconform", "kube-score", "conftest")
RELEASE: Final = ("cosign", "registry", "syft")
GANGS: Final = ("coscheduler", "volcano-scheduler", "volcano-controller-manager")
EVERYDAY: Final = tuple(
    program
    for program in MODULE_OF
    if program not in {*SCALE, *MONITORING, *POLICIES, *QUEUES, *CHART, *RELEASE, *GANGS}
)


def ensure(*names: str, paths: Paths | None = None) -> dict[str, Path]:
    """The programs of these names (`EVERYDAY`, if none is given), built where they are not yet.

    Raises:
        LocalClusterError: a name is unknown, Go or disk space is missing, or a build failed.
    """
    paths = paths or from_environment()
    wanted: defaultdict[str, list[str]] = defaultdict(list)
    for name in names or EVERYDAY:
        if name not in MODULE_OF:
            raise LocalClusterError(f"there is no tool {name}; there are {', '.join(sorted(MODULE_OF))}")
        wanted[MODULE_OF[name].name].append(name)
    found: dict[str, Path] = {}
    for module in MODULE_LIST:
        if programs := wanted.get(module.name):
            folder = ensure_module(module, paths)
            found |= {program: folder / program for program in programs}
    return found


def folder_of(module: Module, paths: Paths) -> Path:
    """Where the module's programs lie, built or not."""
    return paths.tools / f"{module.name}-{fingerprint(module.source, module.build_arguments)}" / "bin"


def fingerprint(folder: Path, flags: tuple[str, ...]) -> str:
    """A hash over the flags and the files of a module: names and contents, not times."""
    digest = hashlib.sha256("\0".join(flags).encode())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"\0{file.relative_to(folder)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def ensure_module(module: Module, paths: Paths) -> Path:
    """The folder of the module's programs and files, built if need be.

    Raises:
        LocalClusterError: Go or disk space is missing, or the build failed.
    """
    folder = folder_of(module, paths)
    if folder.is_dir():
        return folder
    lock = paths.tools / f".{module.name}.lock"
    busy = f"another process has been building {module.name} for an hour (lock {lock}): end it and try again"
    with exclusive(lock, patience=BUILD_WAIT_SECONDS, busy=busy):
        if not folder.is_dir():
            _build(module, folder, paths)
    return folder


def fetch_sources(module: Module, paths: Paths) -> None:
    """Download the Go modules that a build of `module` needs, unless it is built already.

    Raises:
        LocalClusterError: Go is missing, or a Go module cannot be downloaded.
    """
    if folder_of(module, paths).is_dir():
        return
    go = go_toolchain.find(paths)
    if packages := [*module.packages.values()]:
        # Loads the sources of all packages that the build imports, and only those.
        words = ("list", "-deps", *([f"-tags={module.tags}"] if module.tags else []), *packages)
        go_modules.run_go(go, module.source, *words, doing=f"downloading the Go modules of {module.name}")
    for origin in sorted({origin for origin, _ in module.files}):
        go_modules.download(go, module.source, origin)


def _build(module: Module, folder: Path, paths: Paths) -> None:
    # First: fetching Go fills the disk too.
    require_free(paths.tools, gigabytes=6, purpose="building the cluster's programs")
    go = go_toolchain.find(paths)
    say(f"building {', '.join(module.packages) or module.name} (once; about {module.about} on 2 cores)")
    began = time.monotonic()
    for leftover in paths.tools.glob(f".building-{module.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=paths.tools, prefix=f".building-{module.name}-"))
    _compile(go, module, scratch / "bin")
    for origin, file in module.files:
        source = go_modules.download(go, module.source, origin) / file
        if not source.is_file():
            raise LocalClusterError(f"the Go module {origin} has no file {file}")
        shutil.copyfile(source, scratch / "bin" / source.name)
    scratch.chmod(0o755)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    scratch.rename(folder.parent)  # at once: a folder of this name is always complete
    say(f"built {module.name} in {time.monotonic() - began:.0f} s")


def _compile(go: Path, module: Module, output: Path) -> None:
    output.mkdir()
    # `.` and a package's /v3 ending say nothing about the program's name, so these are built one by one.
    together = {name: package for name, package in module.packages.items() if package.endswith(f"/{name}")}
    batches = [(f"{output}/", list(together.values()))] if together else []
    batches += [(f"{output / name}", [package]) for name, package in module.packages.items() if name not in together]
    for target, packages in batches:
        words = ("build", *module.flags, "-o", target, *packages)
        go_modules.run_go(go, module.source, *words, doing=f"building {module.name}")
