"""From a job to the manifests of its pods, its Service and its NetworkPolicy: one file per framework. Pure builders."""
