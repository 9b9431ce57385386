"""A real multi-node Kubernetes on one machine, from pinned Go modules. Knows nothing of the operator."""
