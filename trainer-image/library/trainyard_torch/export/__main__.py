"""`python3 -m trainyard_torch.export CHECKPOINTS FOLDER`: export the weights of a checkpoint to safetensors files."""

from __future__ import annotations

import argparse
import sys

from trainyard_torch.checkpoint.loader import CheckpointError
from trainyard_torch.checkpoint.store import StoreError
from trainyard_torch.errors import first_line
from trainyard_torch.export.from_checkpoint import MAX_FILE_BYTES, export_checkpoint
from trainyard_torch.export.record import ExportError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return the exit code: 1 if nothing was exported."""
    parser = argparse.ArgumentParser(prog="python3 -m trainyard_torch.export", description=__doc__)
    parser.add_argument("checkpoints", help="the folder of all checkpoints of the training")
    parser.add_argument("folder", help="the export's own folder")
    parser.add_argument("--step", type=int, help="the step of the checkpoint; default: the newest usable one")
    parser.add_argument("--key", default="train_state", help="the name under which the state was saved")
    parser.add_argument(
        "--tied",
        action="append",
        default=[],
        type=_tie,
        metavar="NAME=HOLDER",
        help="a name that shares the tensor of another; may be given several times",
    )
    parser.add_argument("--max-file-bytes", type=int, default=MAX_FILE_BYTES, help="size of a file's tensors in bytes")
    options = parser.parse_args(arguments)
    try:
        record = export_checkpoint(
            options.checkpoints,
            options.folder,
            step=options.step,
            key=options.key,
            tied=dict(options.tied),
            max_file_bytes=options.max_file_bytes,
        )
    except (CheckpointError, ExportError, StoreError, ValueError) as error:
        print(first_line(error), file=sys.stderr)  # noqa: T201 - a command line's output
        return 1
    names = sorted(record.files)
    print(f"exported {record.checkpoint['name']} parameters={record.parameters} files={len(names)}")  # noqa: T201 - as above
    return 0


def _tie(text: str) -> tuple[str, str]:
    name, separator, holder = text.partition("=")
    if not (name and separator and holder):
        raise argparse.ArgumentTypeError(f"must be NAME=HOLDER, got {text!r}")
    return name, holder


if __name__ == "__main__":
    sys.exit(main())
