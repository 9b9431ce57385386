"""`make demo`: start a cluster, install the operator, and run a job that recovers from a killed worker."""
