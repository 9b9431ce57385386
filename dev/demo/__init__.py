"""`make demo`: a cluster, the operator, and a job that loses a worker and finishes all the same."""
