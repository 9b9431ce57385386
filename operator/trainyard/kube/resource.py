"""The API paths of each kind of object. Pure: names and paths only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object and the names under which the API serves it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of a collection, object or subresource; without a namespace the collection is
        cluster-wide.
        """
        parts = ["/apis" if self.group else "/api", self.api_version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/".join(parts)

    @property
    def qualified(self) -> str:
        """The name in RBAC rules and CRDs, for example `trainingjobs.trainyard.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def namespace_label(namespace: str | None) -> str:
    """Return the text for a namespace, or for all namespaces (None), as log lines and messages use it."""
    return "all namespaces" if namespace is None else f"the namespace {namespace}"


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node")
SERVICES = Resource("", "v1", "services", "Service")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
RESOURCE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor")
WORKLOAD_PRIORITY_CLASSES = Resource("kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
COMPUTE_DOMAINS = Resource("resource.nvidia.com", "v1beta1", "computedomains", "ComputeDomain")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
