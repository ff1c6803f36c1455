"""Files of which each process of a training run wrote a part are refused, by who merges them."""

from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import vitconvert
from vitconvert.errors import CorruptFile, UnsafeFile
from vitconvert.formats import open_container, weights_in


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["", ".metadata", "__0_0.distcp"])
def test_a_directory_of_torchs_is_refused_by_any_name(tmp_path, name):
    place = tmp_path / "step"
    dcp.save({"model": {"weight": torch.randn(3, 5)}}, checkpoint_id=place, no_dist=True)
    (place / "meta.pt").touch()  # as Lightning adds
    with pytest.raises(CorruptFile) as error:
        open_container(place / name) if name else weights_in(place)
    assert str(error.value) == (
        "error: corrupt-file\n"
        "  This is a distributed checkpoint: each process wrote its parts of the tensors.\n"
        f"  directory  {place}\n"
        "  hint: `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE` makes "
        "one file of its directory."
    )


@pytest.mark.parametrize("count", [1, 2])
def test_safetensors_of_several_processes(tmp_path, count):
    stated = {"DCP_SHARDING_INFO": '{"w": {"saved_offsets": [2, 0]}}'}
    for number in range(count):
        path = tmp_path / f"shard-0000{number + 1}-model-00001-of-00001.safetensors"
        save_file({"w": torch.randn(2, 3)}, path, metadata=stated)
    with pytest.raises(CorruptFile, match="its own part of each tensor") as error:
        vitconvert.load_checkpoint(tmp_path)
    assert "enable_consolidation=True" in str(error.value.hint)
    with pytest.raises(CorruptFile, match="its own part of each tensor"):
        open_container(path)


@pytest.mark.parametrize(
    "held",
    [
        {"module": OrderedDict(w=torch.empty(0)), "param_shapes": [{"w": torch.Size([2, 3])}]},
        {"optimizer_state_dict": {"single_partition_of_fp32_groups": [torch.randn(6)]}},
    ],
    ids=["ZeRO-3's model", "an optimizer's part"],
)
def test_parts_of_deepspeed(tmp_path, held):
    path = tmp_path / "zero_pp_rank_0_mp_rank_00_states.pt"
    torch.save({**held, "ds_version": "0.9.0"}, path)
    with pytest.raises(CorruptFile, match="with DeepSpeed wrote such a file") as error:
        open_container(path)
    assert "`python zero_to_fp32.py DIR FILE`" in str(error.value.hint)
    torch.save({"module": {"w": torch.randn(2, 3)}, "ds_version": "0.9.0"}, path)
    with open_container(path) as whole:  # ZeRO-1 and 2 leave the weights in one piece
        assert list(whole.manifest) == ["w"]


@pytest.mark.parametrize("imported", [True, False])
def test_a_part_of_a_tensor_is_never_taken_for_the_whole(tmp_path, imported):
    # torch allows these classes as soon as anybody has imported their module.
    path = tmp_path / "rank0.pth"
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.save({"w": distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])}, path)
    dist.destroy_process_group()
    allowed = torch.serialization.get_safe_globals()
    if not imported:
        torch.serialization.clear_safe_globals()
    try:
        with pytest.raises(UnsafeFile) as error:
            open_container(path)
    finally:
        torch.serialization.add_safe_globals(allowed)
    assert "torch.distributed.tensor.DTensor" in error.value.evidence["classes"]
    assert error.value.meaning == (
        "Each process of a training run wrote such a file, with its own part of each tensor."
    )
    assert error.value.hint == (
        "gather the tensors before they are saved, with torch.distributed.checkpoint."
        "state_dict.get_model_state_dict and its option full_state_dict=True."
    )
