# ruff: noqa: INP001, T201 - a user's program: it is run, not imported, and it prints
"""The Trainer of Hugging Face Transformers: a tiny GPT-2 learns to count in steps of one, two or three. It knows nothing of Trainyard.

    torchrun --nproc-per-node=2 transformers_train.py --checkpoints /tmp/transformers

The model is made from a configuration, so nothing is downloaded. Checkpoints are the Trainer's own, and each start resumes from the newest.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

SYMBOLS, LENGTH = 16, 32


class Counting(Dataset):
    """Numbers below SYMBOLS that grow by the same from place to place: from the third on, each follows from the two before it."""

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(self._first + number)
        start, stride = torch.randint(0, SYMBOLS, (1,), generator=random), torch.randint(1, 4, (1,), generator=random)
        symbols = (start + stride * torch.arange(LENGTH)) % SYMBOLS
        return {"input_ids": symbols, "labels": symbols}


def model() -> GPT2LMHeadModel:
    """About 200,000 parameters."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=SYMBOLS,
            n_positions=LENGTH,
            n_embd=96,
            n_layer=2,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def settings(options: argparse.Namespace, world: int) -> TrainingArguments:
    """Return the arguments of the Trainer. Creating them joins the process group."""
    cpu = not torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(options.checkpoints),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch // world,
        learning_rate=3e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=10,
        save_steps=options.save_every,
        save_total_limit=2,
        logging_steps=options.save_every,
        disable_tqdm=True,
        dataloader_pin_memory=not cpu,
        report_to="none",
        seed=1,
        # Distributed training on CPUs must be requested, and so must gloo: a torch built with MPI, as Debian's, would use MPI.
        use_cpu=cpu,
        ddp_backend="gloo" if cpu and "LOCAL_RANK" in os.environ else None,
        ddp_find_unused_parameters=False,
    )


def newest(folder: Path) -> tuple[int, Path] | None:
    """The step and the folder of the newest checkpoint that is whole, as the first process sees it."""
    # The Trainer writes one file after the other, and its own state last.
    whole = {
        int(state.parent.name.removeprefix("checkpoint-")): state.parent
        for state in folder.glob("checkpoint-*/trainer_state.json")
    }
    (chosen,) = broadcast_object_list([max(whole.items(), default=None)])
    return chosen


def train(arguments: TrainingArguments, folder: Path) -> None:
    """Go on from the newest checkpoint, and say what was learnt."""
    trainer = Trainer(model=model(), args=arguments, train_dataset=Counting(0, 4096), eval_dataset=Counting(10**6, 256))
    step, found = newest(folder) or (0, None)
    if found and trainer.is_world_process_zero():
        print(f"resuming from step {step}", flush=True)
    trainer.train(resume_from_checkpoint=found and str(found))
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"a loss of {loss:.4f} on lines that it has not seen", flush=True)


def main() -> None:
    """Join the other processes, train, and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=Path, required=True, help="a folder that all processes share")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="lines of a step, all processes together")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.batch % world:
        parser.error(f"--batch {options.batch} must be a multiple of the {world} processes")
    arguments = settings(options, world)
    set_seed(arguments.seed)
    train(arguments, options.checkpoints)
    if dist.is_initialized():
        # First what holds the process group: gloo's threads would else now and then abort a process that has ended well.
        gc.collect()
        # Before torch 2.8 gloo's end may be a wait for ever, unless its own object is the last to go (pytorch/pytorch#154976).
        _gloo = dist.group.WORLD._get_backend(torch.device("cpu")) if arguments.use_cpu else None  # noqa: SLF001
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
