"""Report a training to MLflow or TensorBoard in the background, without delaying it."""
