"""One of two processes that train a model together: `python -m ... ddp|fsdp FOLDER RANK`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.model.timm_pairs import images
from vitconvert.model import ViT


def main(way: str, folder: Path, rank: int) -> None:
    """Write the gradients of four images, of which each process has two."""
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    config, state = torch.load(folder / "model.pt", weights_only=False)
    model = ViT(config, dtype=torch.float64).eval()
    model.load_state_dict(state)
    x = images(model, batch=4)[2 * rank : 2 * rank + 2]
    target = torch.linspace(-1, 1, 4 * config.num_classes, dtype=x.dtype).view(4, -1)
    if way == "fsdp":
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        fully_shard(model.patch_embed, mesh=mesh)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        whole = fully_shard(model, mesh=mesh)
    else:
        whole = DistributedDataParallel(model)
    logits = whole(x)
    (logits - target[2 * rank : 2 * rank + 2]).square().sum().backward()
    found = {
        key: p.grad.full_tensor() if way == "fsdp" else p.grad
        for key, p in model.named_parameters()
    }
    if rank == 0:
        torch.save(found, folder / "gradients.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
