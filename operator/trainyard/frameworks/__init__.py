"""From a job to the manifests of its pods, its Service and its NetworkPolicy: one small file a framework. Pure builders."""
