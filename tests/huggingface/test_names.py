"""The tables alone: every class has one dialect, and writing undoes reading."""

import pytest
import torch
from safetensors import safe_open

from tests.huggingface.classes import CLASSES
from vitconvert import load_checkpoint
from vitconvert.facts.materialise import materialise
from vitconvert.facts.plan import plan_writing
from vitconvert.tables.binding import bind
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import builtin_tables, likely_tables
from vitconvert.tables.names import Names

# What a whole model puts before its encoder; a bare one is read with it as well as without.
ENCODERS = ("dinov2.", "dinov2_with_registers.", "beit.", "data2vec_vision.", "vision_model.")


def test_recognised_without_a_configuration_and_screened_for_no_other(case):
    shapes = {name: tuple(tensor.shape) for name, tensor in case.model().state_dict().items()}
    found = recognise(shapes)
    assert found.table.name == case.dialect and found.prefix == ""
    tables = [table for table in builtin_tables().values() if not table.named_only]
    fitting = {table.name for table in tables if bind(table, shapes).fits}
    assert fitting and fitting <= {table.name for table in likely_tables(Names(shapes))}


def bare(name: str) -> str:
    prefix = next((encoder for encoder in ENCODERS if name.startswith(encoder)), "")
    return name.removeprefix(prefix)


def test_writing_undoes_reading_to_the_last_byte(case, save):
    folder, _ = save(case)
    checkpoint = load_checkpoint(folder)
    plan = plan_writing(builtin_tables()[case.dialect], checkpoint.config)
    written = materialise(plan, checkpoint.tensors.__getitem__)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        theirs = {bare(name): file.get_tensor(name) for name in checkpoint.ledger.used}
    # Beside them are constants and empty tensors, in the place of what plays no part.
    inert = {bare(name) for name in checkpoint.ledger.ignored}
    holding = {bare(name): tensor for name, tensor in written.items() if tensor.numel()}
    assert holding.keys() - inert == theirs.keys()
    for name, wanted in theirs.items():
        tensor = holding[name]
        assert tensor.shape == wanted.shape and torch.equal(tensor, wanted), name


def test_data2vec_is_written_in_its_own_name(save):
    folder, model = save(CLASSES["Data2Vec, classes"])
    checkpoint = load_checkpoint(folder)
    plan = plan_writing(builtin_tables()["hf_data2vec"], checkpoint.config)
    written = materialise(plan, checkpoint.tensors.__getitem__)
    assert written.keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("embeddings.position_ids", "CLIP"),
        ("vision_model.embeddings.position_ids", "SigLIP, both towers"),
        (
            "beit.encoder.layer.0.attention.attention.relative_position_bias"
            ".relative_position_index",
            "BEiT, classes",
        ),
    ],
)
def test_what_older_releases_stored_and_never_read_is_ignored(old, name):
    state = {key: tuple(tensor.shape) for key, tensor in CLASSES[name].model().state_dict().items()}
    found = recognise(state | {old: (1, 10)})
    assert old in found.binding.ignored
