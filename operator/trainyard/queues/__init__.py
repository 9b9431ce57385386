"""What a job and its queue tell each other: the manifest and patches of a Workload, and an admission as pods. Pure."""
