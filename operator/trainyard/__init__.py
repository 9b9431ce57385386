"""Trainyard: a Kubernetes operator for distributed training jobs."""
