"""The course of a training, told to MLflow or TensorBoard, beside the training and without holding it up."""
