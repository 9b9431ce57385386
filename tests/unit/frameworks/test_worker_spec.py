"""What follows from a job's template for its workers."""

from tests.support.worker_pods import worker


def test_names_and_run_id() -> None:
    made = worker(index=2, attempt=7)
    assert (made.pod_name, made.host, made.master) == ("train-worker-2-7", "train-worker-2", "train-worker-0.train")
    assert made.run_id == "job-uid-7"
