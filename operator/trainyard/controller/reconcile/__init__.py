"""Reconcile one TrainingJob: read caches, plan, execute, write the status."""
