"""Torch checkpoints that torch itself reads, under a wrapper or without."""

import pytest
import torch

from vitconvert.formats import Content, Surroundings, content_of
from vitconvert.formats.container import ITEM_SIZE
from vitconvert.formats.torch.writing import write_file


@pytest.mark.parametrize("beside", [{}, {"epoch": 0, "batches": 70_000}], ids=["", "beside"])
@pytest.mark.parametrize("wrapper", ["", "model"])
def test_torch_reads_and_maps_what_is_written(tmp_path, wrapper, beside):
    dtypes = {name: torch.randn(3, 2).to(getattr(torch, name)) for name in ITEM_SIZE}
    tensors = dtypes | {"none": torch.empty(2, 0, 3), "π": torch.tensor(3)}
    write_file(tmp_path / "x.pt", tensors, Surroundings(wrapper=wrapper, extras=beside))
    read = torch.load(tmp_path / "x.pt", weights_only=True, mmap=True)
    if wrapper:
        assert {key: value for key, value in read.items() if key != wrapper} == beside
        read = read[wrapper]
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name].shape == tensor.shape
        assert torch.equal(*(x.reshape(-1).view(torch.uint8) for x in (read[name], tensor)))


def test_the_bytes_do_not_depend_on_chunks(tmp_path):
    (content,) = (content_of("a", torch.randn(7, 3)),)
    (whole,) = content.chunks()
    chunked = Content(
        info=content.info, chunks=lambda: (whole[at : at + 5] for at in range(0, len(whole), 5))
    )
    hashes = {write_file(tmp_path / f"{n}.pt", {"a": c}) for n, c in enumerate((content, chunked))}
    assert len(hashes) == 1
