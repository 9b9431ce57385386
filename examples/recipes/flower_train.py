# ruff: noqa: INP001 - a user's program: it is run, not imported
"""Flower: a network learns which points lie between two circles, from points that never leave the clients that have them.

    python3 flower_train.py --checkpoints /tmp/flower

This starts a run of Flower, with this file as its app, on the SuperLink that `flwr` knows. A client reads the points in the folder `data` of its
node configuration. Without one it makes them: those of one sector of the plane, so that no client could learn alone. It knows nothing of Trainyard.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

APP = """
[project]
name = "points"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "recipes"
[tool.flwr.app.components]
serverapp = "flower_train:server"
clientapp = "flower_train:client"
[tool.flwr.app.config]
checkpoints = ""
clients = 2
rounds = 8
"""
STEPS, BATCH = 400, 256
server = ServerApp()
client = ClientApp()


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of shape (count, 2), and 1 for each that lies between the circles, of shape (count,)."""
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    distance = places.norm(dim=1)
    return places, ((distance > 0.4) & (distance < 0.8)).float()


def own_points(config: dict[str, object]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the points of this client, from its folder or made."""
    if folder := config.get("data"):
        places, between = torch.load(Path(str(folder), "points.pt"), weights_only=True)
        return places, between
    places, between = points(20_000, 1)
    sectors = int(str(config["num-partitions"]))
    sector = ((torch.atan2(places[:, 1], places[:, 0]) / torch.pi + 1) / 2 * sectors).long().clamp(max=sectors - 1)
    mine = sector == int(str(config["partition-id"]))
    return places[mine], between[mine]


def network() -> nn.Sequential:
    """Return a network whose output is above 0 for points between the circles."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on the points of this client, and return the parameters alone."""
    places, between = own_points(context.node_config)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    order, loss = torch.Generator().manual_seed(int(message.content["config"]["server-round"])), torch.zeros(())
    for _ in range(STEPS):
        batch = torch.randint(len(places), (BATCH,), generator=order)
        loss = nn.functional.binary_cross_entropy_with_logits(model(places[batch]).squeeze(1), between[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"loss": loss.item(), "num-examples": len(places)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Average what the clients have learnt, round by round, from the newest checkpoint on."""
    rounds, clients = int(context.run_config["rounds"]), int(context.run_config["clients"])
    if rounds < 1:
        raise ValueError(f"rounds must be 1 or more, got {rounds}")
    file, model, first = Path(str(context.run_config["checkpoints"]), "model.pt"), network(), 0
    if file.exists():
        first, state = torch.load(file, weights_only=True)
        model.load_state_dict(state)
        say(f"resuming from step {first}")
    test, between = points(4096, 0)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            scores = model(test).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, between).item()
        right = ((scores > 0) == (between > 0)).float().mean().item()
        say(f"step {first + number} loss {loss:.3f}")
        say(f"{100 * right:.1f}% of points in the test set are classified correctly")
        if number:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save((first + number, model.state_dict()), file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        return MetricRecord({"loss": loss, "right": right})

    # A round goes on without a client that is lost in it, and the next one waits until all are there.
    strategy = FedAvg(fraction_evaluate=0, min_available_nodes=clients, min_train_nodes=clients)
    arrays = ArrayRecord(model.state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=max(rounds - first, 1), evaluate_fn=evaluate)


def say(line: str) -> None:
    """Print a line, which `flwr run --stream` shows."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Start the run. Returns the exit code of `flwr run`, which says nothing of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder of the server")
    parser.add_argument("--clients", type=int, default=2, help="how many have to be there in each round")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    config = f'checkpoints="{options.checkpoints.resolve()}" clients={options.clients} rounds={options.rounds}'
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(APP)
        shutil.copy(__file__, Path(folder, "flower_train.py"))
        return subprocess.run(["flwr", "run", folder, "--run-config", config, "--stream"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
