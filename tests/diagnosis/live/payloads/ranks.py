"""One rank of a torchrun job with gloo: ``ranks.py MODE DIRECTORY``; MODE is how rank 1 differs.

`missing`: it never enters the last all_reduce. `ends`: all is well, and every rank writes its Flight Recorder dump, but
rank 1 wrote its before the last all_reduce.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist

ctypes.CDLL(None).prctl(1, 9)
mode, directory = sys.argv[1:3]
dist.init_process_group("gloo")
rank = dist.get_rank()
values = torch.ones(4)


def dump() -> None:
    with open(f"{directory}/rank_{rank}", "wb") as file:
        file.write(getattr(torch._C._distributed_c10d, "_dump_fr_trace")())  # noqa: B009 - not in the stubs


def train_step() -> None:
    dist.all_reduce(values)


def save_something() -> None:
    while True:
        time.sleep(1000)


train_step()
train_step()
if rank == 1:
    dump()
with open(f"{directory}/ready.{rank}", "w") as file:
    file.write(str(os.getpid()))
if mode == "missing" and rank == 1:
    save_something()
train_step()
if rank != 1:
    dump()
dist.destroy_process_group()
