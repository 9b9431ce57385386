"""Everything that is said to the Kubernetes API, and nothing of what it is said for."""
