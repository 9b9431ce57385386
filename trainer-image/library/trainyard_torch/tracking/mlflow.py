"""The MLflow backend: one run for all attempts of a job, and models in the registry.

Writes are idempotent, since they are repeated after lost answers: parameters and tags by name, metrics by MLflow's own key of step, time and
value.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import urlsplit

from typing_extensions import override

from trainyard_torch.errors import first_line
from trainyard_torch.tracking.background import RefusedError, Sink, TrackingError
from trainyard_torch.tracking.events import CheckpointSaved, MetricsLogged, RunEnded, RunStarted
from trainyard_torch.tracking.registry import TAG, registered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainyard_torch.export.record import Record
    from trainyard_torch.tracking.events import Event, Status

STATUS: dict[Status, str] = {"finished": "FINISHED", "stopped": "SCHEDULED", "failed": "FAILED"}
"""A training that was stopped with saved state will resume: MLflow's status for that is SCHEDULED."""
METRICS_PER_REQUEST, PARAMETERS_PER_REQUEST = 500, 100
"""The most metrics, and parameters, of one request."""
LONGEST_VALUE = 500
"""The length limit of a parameter on servers of all releases."""
CLIENT_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Defaults for MLflow's client unless set: this module retries itself, while the client would block for minutes."""


class MLflow(Sink):
    """A run of an MLflow server.

    The run is found by the job's UID, stored in a tag, or by `run_id`. Steps that it has already are not sent again.

    Args:
        tracking_uri: the URI of the server; by default MLFLOW_TRACKING_URI.
        experiment: its name, created if missing; by default MLFLOW_EXPERIMENT_NAME, or "Default".
        run_id: the ID of the run to continue; by default MLFLOW_RUN_ID, or none.
        run_name: the name of a new run; by default that of the job.

    Raises:
        ValueError: no URI is set.
        ModuleNotFoundError: the package mlflow is missing.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str | None = None,
        run_id: str | None = None,
        run_name: str | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise ModuleNotFoundError("tracking by MLflow needs its client: pip install mlflow-skinny (or mlflow)")
        self._tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        if not self._tracking_uri:
            raise ValueError(
                'tracking_uri is missing: the server\'s address, as MLflow("http://mlflow:5000") or MLFLOW_TRACKING_URI'
            )
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._given, self._named = run_id or os.environ.get("MLFLOW_RUN_ID") or "", run_name
        self._began = RunStarted(0.0)
        self._client: Any = None
        self._last: dict[str, int] = {}
        self._known: dict[str, str] = {}
        self._running = False
        self.run_id = ""

    @property
    @override
    def name(self) -> str:
        parts = urlsplit(self._tracking_uri)
        # Without a password in the URI.
        return (
            f"MLflow at {parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
            if parts.hostname
            else f"MLflow at {self._tracking_uri}"
        )

    @override
    def write(self, events: Sequence[Event], /) -> None:
        self._began = next((event for event in events if isinstance(event, RunStarted)), self._began)
        if not self._running:
            self._open(self._began)
        self._log(*self._made_of(events))
        for event in events:
            if isinstance(event, RunEnded):
                self._end(event)

    @override
    def close(self) -> None:
        """Do nothing: the client has no open resources."""

    @override
    def register(self, name: str, url: str, record: Record, local: str | None, /) -> str:
        """Register an export as a version of a model, as `registry.registered` does.

        Raises:
            TrackingError: the server refuses, or does not answer.
        """
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - optional

        if not self.run_id:
            raise TrackingError(f"{name} was not registered: {self.name} has not answered so far")
        try:
            return registered(self._made(), self.run_id, name, url, record, local)
        except (MlflowException, OSError) as error:
            raise TrackingError(f"{name} was not registered: {self.name} answered {first_line(error)}") from error

    def _made(self) -> Any:
        """Return the client."""
        if self._client is None:
            for variable, value in CLIENT_DEFAULTS.items():
                os.environ.setdefault(variable, value)
            from mlflow import MlflowClient  # noqa: PLC0415 - optional, and takes seconds

            self._client = MlflowClient(self._tracking_uri)
        return self._client

    def _open(self, began: RunStarted) -> None:
        client = self._made()
        run = client.get_run(self._given) if self._given else self._found(client, began)
        self.run_id = run.info.run_id
        self._known = dict(run.data.params)
        # Private; the public API returns the whole history of each metric.
        self._last = {each.key: each.step for each in getattr(run.data, "_metric_objs", ())}
        if run.info.status != "RUNNING":
            client.update_run(self.run_id, status="RUNNING")
        self._running = True

    def _found(self, client: Any, began: RunStarted) -> Any:
        experiment = client.get_experiment_by_name(self._experiment)
        where = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        if began.job:
            wanted = f"tags.`{TAG}job-uid` = '{began.job}'"
            found = client.search_runs([where], wanted, order_by=["attributes.start_time ASC"], max_results=1)
            if found:
                return found[0]
        # Set the tag at creation, so that a retry after a lost answer finds the run.
        tags = {f"{TAG}job-uid": began.job, f"{TAG}job-name": began.name} if began.job else {}
        return client.create_run(where, tags=tags, run_name=self._named or began.name or None)

    def _made_of(self, events: Sequence[Event]) -> tuple[list[Any], dict[str, str], dict[str, str]]:
        """Log metrics, parameters and tags."""
        metrics: list[Any] = []
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for event in events:
            match event:
                case RunStarted():
                    params.update(self._new(event))
                    tags.update(_lineage(event))
                case MetricsLogged():
                    metrics.extend(self._points(event.values, event.step, event.time))
                case CheckpointSaved():
                    metrics.extend(self._points({"checkpoint_attempt": event.attempt}, event.step, event.time))
                    tags[f"{TAG}checkpoint"] = event.path
                case RunEnded():
                    pass
                case _:
                    assert_never(event)
        return metrics, params, tags

    def _new(self, began: RunStarted) -> dict[str, str]:
        """Return the parameters that the run does not have. Changed ones get a name with the attempt, since MLflow's cannot change."""
        found = {}
        for name, value in began.parameters.items():
            key, text = _key(name), value[:LONGEST_VALUE]
            if key in self._known and self._known[key] != text:
                key = f"attempt-{began.attempt}/{key}"
            if self._known.get(key) != text:
                found[key] = text
        return found

    def _points(self, values: Mapping[str, float], step: int, time: float) -> list[Any]:
        from mlflow.entities import Metric  # noqa: PLC0415 - optional

        keyed = {_key(name): value for name, value in values.items()}
        return [
            Metric(key, float(value), int(time * 1000), step)
            for key, value in keyed.items()
            if step > self._last.get(key, -1)
        ]

    def _log(self, metrics: list[Any], params: Mapping[str, str], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param, RunTag  # noqa: PLC0415 - optional
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - optional

        pairs = [Param(key, value) for key, value in params.items()]
        labels = [RunTag(key, value) for key, value in tags.items()]
        try:
            for begin in range(0, len(metrics), METRICS_PER_REQUEST):
                self._client.log_batch(
                    self.run_id, metrics=metrics[begin : begin + METRICS_PER_REQUEST], synchronous=True
                )
            for begin in range(0, len(pairs), PARAMETERS_PER_REQUEST):
                self._client.log_batch(
                    self.run_id, params=pairs[begin : begin + PARAMETERS_PER_REQUEST], synchronous=True
                )
            if labels:
                self._client.log_batch(self.run_id, tags=labels, synchronous=True)
        except MlflowException as error:
            if error.error_code in {"INVALID_PARAMETER_VALUE", "BAD_REQUEST"}:
                raise RefusedError(first_line(error)) from error
            raise

    def _end(self, event: RunEnded) -> None:
        if event.status == "stopped":
            self._client.update_run(self.run_id, status=STATUS[event.status])
        else:
            self._client.set_terminated(self.run_id, STATUS[event.status], int(event.time * 1000))


def _lineage(began: RunStarted) -> dict[str, str]:
    tags = {f"{TAG}attempt.{began.attempt}": f"from {began.base}" if began.base else "from the beginning"}
    if began.checkpoints:
        tags[f"{TAG}checkpoints"] = began.checkpoints
    return tags


def _key(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^/\w.\- ]", "_", name)[:250]
