"""Names of values in other charts, and the answer to each. The schema refuses such a value with the answer in the message."""

from typing import Final

ANSWERS: Final = {
    "args": "not a value of this chart: use settings, or extraEnv",
    "env": "named extraEnv in this chart",
    "envVars": "named extraEnv in this chart",
    "extraArgs": "not a value of this chart: use settings, or extraEnv",
    "extraEnvVars": "named extraEnv in this chart",
    "extraLabels": "named commonLabels in this chart",
    "image.registry": "not a value of this chart: put the registry in front of image.repository, or set global.imageRegistry",
    "imagePullPolicy": "named image.pullPolicy in this chart",
    "installCRDs": "named crds.enabled in this chart",
    "labels": "named commonLabels in this chart",
    "leaderElect": "named leaderElection.enabled in this chart",
    "logLevel": "named settings.logLevel in this chart",
    "namespaces": "named watchNamespaces in this chart",
    "pdb": "named podDisruptionBudget in this chart",
    "podSecurityContext": "fixed by this chart: only runAsUser can be set",
    "prometheusRule": "named metrics.prometheusRule in this chart",
    "replicaCount": "named replicas in this chart",
    "securityContext": "fixed by this chart: only runAsUser can be set",
    "service": "named metrics.service in this chart",
    "serviceMonitor": "named metrics.serviceMonitor in this chart",
    "watchNamespace": "named watchNamespaces in this chart, a list",
    "webhook": "not a value of this chart: it installs no webhook",
}
