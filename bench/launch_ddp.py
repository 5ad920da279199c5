"""The peer of bench/launch.py: char_gpt's first step by plain torch, under torchrun.

Written as such a script usually is: every worker reads the text, builds the model,
wraps it in DistributedDataParallel and takes a step. Rank 0 then prints the time.
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from recipes.char_gpt import GPT, loss, optimizer_of
from recipes.stdlib_text import Windows, read_stdlib

WIDTH, DEPTH, NUM_HEADS, CONTEXT, BATCH_ROWS = 128, 4, 4, 128, 16


def main() -> None:
    """One worker's first step; then it waits to be ended."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    windows = Windows(read_stdlib().train, CONTEXT)
    model = GPT(width=WIDTH, depth=DEPTH, num_heads=NUM_HEADS)
    wrapped = DistributedDataParallel(model)
    optimizer = optimizer_of(model, lr=4e-3, weight_decay=0.1)
    rows = BATCH_ROWS // dist.get_world_size()
    loader = DataLoader(windows, rows, sampler=DistributedSampler(windows))
    nats, _ = loss(wrapped, next(iter(loader)))
    nats.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    float(nats.detach())
    if dist.get_rank() == 0:
        print(f"first step {time.time()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
