"""`helm test`: run a job of two workers from the operator's own image, to verify that the installation can train."""

HEARTBEAT_FILE_VARIABLE = "HELM_TEST_HEARTBEAT_FILE"
"""Environment variable: path of a file whose modification time is the time of the API server's last response."""
