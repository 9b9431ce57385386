"""What the agent runs in a pod of a Ray cluster, by the operator's variables."""

from pathlib import Path

import pytest

from trainyard_agent.ranks import SettingError
from trainyard_agent.ray import RayNode, ray_node

HEAD = {"TRAINYARD_RAY_START": "--head --port=29500 --num-cpus=0", "TRAINYARD_RAY_WORKERS": "2"}
WORKER = {"TRAINYARD_RAY_START": "--address=train-head-0.train:29500 --num-cpus=4", "TRAINYARD_RAY_WORKERS": "2"}
DRIVER = ["/opt/python3", "train.py"]


def node(environment: dict[str, str], *words: str, **more: str) -> RayNode:
    made = ray_node(words or DRIVER, {**environment, **more})
    assert made is not None
    return made


def test_other_frameworks_have_no_node() -> None:
    assert ray_node(DRIVER, {"TRAINYARD_RAY_WORKERS": "2"}) is None


def test_head_runs_ray_and_waits_for_workers() -> None:
    made = node(HEAD)
    assert made.is_head
    start = ["/opt/python3", "-m", "ray.scripts.scripts", "start"]
    assert made.start("10.0.0.7") == [
        *start,
        "--node-ip-address=10.0.0.7",
        "--head",
        "--port=29500",
        "--num-cpus=0",
        "--block",
    ]
    assert made.join("127.0.0.1:29500")[-2:] == ["127.0.0.1:29500", "2"]
    assert made.servers == ("raylet", "gcs_server")
    assert made.head_address is None


def test_worker_joins_the_head() -> None:
    made = node(WORKER)
    assert not made.is_head
    assert made.head_address == ("train-head-0.train", 29500)
    assert made.servers == ("raylet",)


def test_address_of_ipv6() -> None:
    assert node(WORKER, TRAINYARD_RAY_OPTIONS="--address=[fd00::7]:6379").head_address == ("fd00::7", 6379)
    assert node(WORKER, TRAINYARD_RAY_OPTIONS="--address other:6379").head_address == ("other", 6379)


def test_own_address_has_the_port_that_counts() -> None:
    assert node(HEAD, RAY_ADDRESS="ray://elsewhere:10001").own_address == "127.0.0.1:29500"
    assert node(HEAD, TRAINYARD_RAY_OPTIONS="--port 6379").own_address == "127.0.0.1:6379"
    assert node(HEAD, TRAINYARD_RAY_OPTIONS="--port=0").own_address == "auto"


def test_own_options_come_last() -> None:
    made = node(HEAD, TRAINYARD_RAY_OPTIONS="""--num-cpus=8 --labels='{"zone": "a"}' --node-ip-address=10.0.0.9""")
    assert made.start("10.0.0.7")[-4:] == [
        "--num-cpus=8",
        '--labels={"zone": "a"}',
        "--node-ip-address=10.0.0.9",
        "--block",
    ]
    assert "--node-ip-address=10.0.0.7" not in made.start("10.0.0.7")


def test_ray_finds_the_address_itself_without_one() -> None:
    assert not any(word.startswith("--node-ip-address") for word in node(HEAD).start(""))


def test_interpreter_of_the_driver_or_of_ray(tmp_path: Path) -> None:
    (tmp_path / "ray").write_text("#!/opt/conda/bin/python3.12\n")
    assert node(HEAD, PATH=str(tmp_path)).interpreter == ["/opt/python3"]
    assert node(HEAD, "sh", "-c", "python train.py", PATH=str(tmp_path)).interpreter == ["/opt/conda/bin/python3.12"]
    assert node(HEAD, "sh", "-c", "python train.py", PATH="/nowhere").interpreter == ["python3"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"TRAINYARD_RAY_WORKERS": "two"}, "TRAINYARD_RAY_WORKERS"), ({"TRAINYARD_RAY_OPTIONS": "--labels='"}, "OPTIONS")],
)
def test_wrong_settings_are_refused(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        node(HEAD, **wrong)
