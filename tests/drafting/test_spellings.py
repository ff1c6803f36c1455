"""Drafts for spellings that have no table, compared with what a person says of them."""

import pytest
import torch

import vitconvert
import vitconvert.drafting
from tests.drafting.drafting import draft, missed_rows, reference, wrong_rows
from tests.drafting.spellings import SPELLINGS, weights
from tests.sampling import sampled

# One tensor of theirs is several of ours, or not all of it is one, or ours has no such tensors.
NEVER_WHOLE = {"radio", "beit3", "sam"}
# What names and shapes do not tell; with the same weights, none of them is a guess.
GUESSED = {"eva02": 3, "radio": 1, "aimv2": 2, "beit3": 4, "sapiens2": 4, "torch_encoder": 1}
GUESSED |= {"nested": 2, "team": 3}
# Of these, what is wrong: a file of safetensors sorts ask, carry and match by the alphabet.
WRONG = {"team": ["blocks.{i}.attn.qkv.{p}"]}


def _shapes(file, spelling):
    """Of what a draft is made for."""
    tensors = vitconvert.inspect(file).tensors.items()
    return {name: info.shape for name, info in tensors if not _ignored(name, spelling)}


@pytest.mark.parametrize("same", [False, True], ids=["other weights", "same weights"])
@pytest.mark.parametrize("name", sampled(SPELLINGS, 4, "slow"))
def test_what_is_certain_is_right_and_the_rest_is_said(name, same, tmp_path):
    spelling = SPELLINGS[name]
    found, file = draft(tmp_path, spelling, same=same)
    wrong = wrong_rows(found, spelling, _shapes(file, spelling))
    assert wrong == ([] if same else WRONG.get(name, []))
    assert not set(wrong) & {row.name for row in found.certain}
    assert not missed_rows(found, spelling)
    assert len(found.guesses) == (0 if same else GUESSED.get(name, 0)), found.guesses
    assert all(row.reason for row in found.rows)
    assert (found.problem is None) == (not found.guesses and name not in NEVER_WHOLE)
    said = {*found.left, *found.ignored}
    assert said == {key for key in spelling.beside if not _ignored(key, spelling)}


def _ignored(key, spelling):
    return any(key.startswith(pattern.rstrip("*")) for pattern in spelling.ignore)


@pytest.mark.parametrize(
    "name", sampled([name for name in SPELLINGS if name not in NEVER_WHOLE], every=4)
)
def test_a_draft_converts(name, tmp_path):
    spelling = SPELLINGS[name]
    _, file = draft(tmp_path, spelling, same=name in GUESSED)
    config = spelling.vit()
    wanted = vitconvert.load_model(reference(tmp_path, config, weights(spelling, config)))
    found = vitconvert.load_model(file, table=tmp_path / "team.toml", ignore=spelling.ignore)
    x = torch.randn(2, 3, *config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(found(x), wanted(x))
        assert found(x).isfinite().all()


@pytest.mark.coverage
def test_the_figures_are_those_of_the_docstring(tmp_path):
    counts = {False: [0, 0, 0], True: [0, 0, 0]}
    for same, count in counts.items():
        for name, spelling in SPELLINGS.items():
            folder = tmp_path / f"{name}-{same}"
            folder.mkdir()
            found, file = draft(folder, spelling, same=same)
            wrong = set(wrong_rows(found, spelling, _shapes(file, spelling)))
            count[0] += len(found.certain)
            count[1] += len(found.guesses)
            count[2] += sum(row.name not in wrong for row in found.guesses)
            assert not wrong & {row.name for row in found.certain}
    (certain, guesses, right), (valued, none, _) = counts[False], counts[True]
    said = " ".join((vitconvert.drafting.__doc__ or "").split())
    assert f"{len(SPELLINGS)} spellings" in said
    assert f"{certain} of {certain + guesses} rows" in said, (certain, guesses)
    assert f"{right} of the {guesses} guesses" in said, (right, guesses)
    assert f"all {valued + none} rows are certain" in said, (valued, none)
