"""A TrainingJob as the API server stores it."""

from typing import Any

RAW: dict[str, Any] = {
    "metadata": {"uid": "1", "resourceVersion": "7", "namespace": "lab", "name": "job", "generation": 2},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}},
    "status": {"attempt": 1},
}
