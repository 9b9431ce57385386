"""What can be set from outside, as `TRAINYARD_*` in the environment; the chart's values are the same names."""

import socket
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True, use_attribute_docstrings=True)

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much is logged."""
    workers: int = Field(default=16, ge=1, le=256)
    """Jobs that are looked at side by side."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /metrics, /healthz and /readyz; 0 takes any free one."""
    http_host: str = "0.0.0.0"  # noqa: S104 - the kubelet's probes and Prometheus come from outside the pod
    """Address on which that port is open."""
    instance: str = Field(default_factory=socket.gethostname)
    """The name under which this process writes events: its pod's."""
    context: str | None = None
    """The kubeconfig context to use outside a cluster."""
    relist_seconds: float = Field(default=300.0, ge=1, allow_inf_nan=False)
    """How often all TrainingJobs are listed, in case the watch has missed one."""
    stale_seconds: float = Field(default=150.0, ge=1, allow_inf_nan=False)
    """After so long without a sign of life a watch is stale, and the probes fail."""
