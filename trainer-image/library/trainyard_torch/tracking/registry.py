"""Register exports as versions of MLflow's models, with their provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard_torch.export.record import Record

TAG = "trainyard.dev/"


def registered(client: Any, run_id: str, name: str, url: str, record: Record, local: str | None) -> str:
    """Make an export a version of a registered model; an existing version of this run is not made again.

    Args:
        client: `mlflow.MlflowClient`.
        run_id: the ID of the run that made the model.
        name: the name of the model.
        url: the folder of the export.
        record: the record of the export.
        local: its path on this machine, if it is on a volume. Then its files are uploaded to the run, since the server cannot read the volume.

    Returns:
        The version.

    Raises:
        MlflowException: the server refuses, or does not answer.
    """
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - optional

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.run_id == run_id and version.tags.get(f"{TAG}weights") == record.weights:
            return str(version.version)
    source = url
    if local is not None:
        path = f"exports/{record.weights[:16]}"
        client.log_artifacts(run_id, local, path)
        source = f"{client.get_run(run_id).info.artifact_uri}/{path}"
    description = f"Provenance: RECORD.json in {url}"
    made = client.create_model_version(name, source, run_id, tags=described(record), description=description)
    return str(made.version)


def described(record: Record) -> dict[str, str]:
    """Return the values of a record that users search for in a registry, as tags."""
    tags = {
        "weights": record.weights,
        "commit": record.code.commit + ("-dirty" if record.code.dirty else ""),
        "checkpoint": record.checkpoint.get("name"),
        "job-uid": record.environment.get("job", {}).get("uid"),
        "image": record.environment.get("image"),
        "torch": record.environment.get("torch"),
        "files": ", ".join(sorted(record.files)),
    }
    return {f"{TAG}{key}": str(value) for key, value in tags.items() if value}
