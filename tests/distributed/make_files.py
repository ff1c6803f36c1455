"""Write files/ and parts/: what four processes save together, each with its part of every tensor.

In parts/ are safetensors, two of each process.

Run from the repository's root; `expected.pt` is what torch's own reader gathers of them:

    torchrun --nproc-per-node 4 -m tests.distributed.make_files
"""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

FILES = Path(__file__).parent / "files"
PARTS = Path(__file__).parent / "parts"


def tensors() -> dict[str, torch.Tensor]:
    """Cut along one axis and along two; with less than a part for each process, and with none."""
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (2, 2))
    made = {
        "rows": (torch.randn(7, 3), [Shard(0), Replicate()]),
        "both": (torch.randn(5, 7), [Shard(0), Shard(1)]),
        "same": (torch.randn(9, 2), [Shard(0), Shard(0)]),
        "few": (torch.randn(1, 3, 2).to(torch.bfloat16), [Shard(0), Shard(2)]),
        "number": (torch.tensor(2.5), [Replicate(), Replicate()]),
        "none": (torch.empty(0, 4), [Replicate(), Replicate()]),
    }
    return {name: distribute_tensor(t, mesh, cuts) for name, (t, cuts) in made.items()}


def main() -> None:
    """Write the files anew."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        for place in (FILES, PARTS):
            shutil.rmtree(place, ignore_errors=True)
    dist.barrier()
    saved = {"iteration": 3, "model": tensors(), "args": {"lr": [0.5, None], "name": "x"}}
    dcp.save(saved, checkpoint_id=FILES.relative_to(Path.cwd()))  # it is written down
    file_of = {name: 1 + number % 2 for number, name in enumerate(tensors())}
    writer = dcp.HuggingFaceStorageWriter(str(PARTS), file_of, save_distributed=True)
    dcp.save(tensors(), storage_writer=writer)
    if dist.get_rank() == 0:
        dcp_to_torch_save(FILES, FILES / "expected.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
