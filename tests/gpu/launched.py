"""Start ``finetune`` in one of several processes, which may share one GPU.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.gpu.launched cuda classify ...

NCCL refuses two processes on one device, so that these use gloo unless each has its own.
"""

from __future__ import annotations

import os
import sys

import torch

from finetune.cli.main import main


def start(device: str, words: list[str]) -> None:
    """Choose the device of this process and how the processes exchange tensors."""
    if device == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
    elif int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count():
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cuda:0"
        torch.cuda.set_device(0)
        torch.distributed.init_process_group("gloo")
    sys.exit(main(words))


if __name__ == "__main__":
    start(sys.argv[1], sys.argv[2:])
