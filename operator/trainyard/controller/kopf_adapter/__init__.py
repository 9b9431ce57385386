"""Connect kopf's watch on TrainingJobs to the engine."""
