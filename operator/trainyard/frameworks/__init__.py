"""From a job to the manifests of its pods and its Service: one small file a framework. Pure builders."""
