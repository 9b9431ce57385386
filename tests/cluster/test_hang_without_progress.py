"""Ranks that wait for each other and report no progress: the job says so, and shows their stacks."""

from tests.cluster.kube import Json, Kube, job, main_container

STUCK = """
import threading
def all_reduce(): threading.Event().wait()
print("stuck", flush=True)
all_reduce()
"""
SECONDS = 15


def stuck() -> Json:
    manifest = job(recovery={"hangTimeoutSeconds": SECONDS})
    main_container(manifest)["command"] = ["python3", "-c", STUCK]
    return manifest


def logs(kube: Kube) -> str:
    # There is no log before the containers have started.
    if any(not pod["status"].get("containerStatuses", [{}])[0].get("started") for pod in kube.pods("job")):
        return ""
    return kube.run("logs", "-l", "trainyard.dev/job-name=job", "--prefix", "--tail=-1")


def test_stuck_ranks_are_suspected_and_show_their_stacks(kube: Kube) -> None:
    kube.apply(stuck())
    kube.until(lambda: logs(kube).count("stuck") == 2, 120, "both ranks to be stuck")
    kube.run("annotate", "tj", "job", "trainyard.dev/dump-stacks=first")
    kube.until(
        lambda: logs(kube).count("stacks were requested; stacks follow ranks=0 programs=1") == 2, 60, "stacks of both"
    )
    assert logs(kube).count("in all_reduce") >= 2
    assert "StacksRequested" in kube.run("get", "events")
    kube.until(
        lambda: kube.condition("job", "HangSuspected").get("status") == "True", 4 * SECONDS + 60, "the suspicion"
    )
    status = kube.status("job")
    assert (status["reason"], status["attempt"]) == ("RanksIdle", 1)
    kube.until(lambda: "no rank does anything; stacks follow ranks=0 programs=1" in logs(kube), 30, "the stacks")
    assert "RanksIdle" in kube.run("get", "tj", "job")
