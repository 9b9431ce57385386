"""Client of the Kubernetes API: requests, watches, caches, leases and events. Knows nothing of training."""
