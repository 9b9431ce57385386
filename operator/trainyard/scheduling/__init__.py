"""What a cluster's schedulers and networks need of a job's pods. Pure."""
