"""Where in the image the first layer departs: a difference for each token."""

import copy
import math

import torch

from vitconvert.checkpoint import build_model, read_checkpoint
from vitconvert.comparison import relative_difference
from vitconvert.parity.differences import token_differences
from vitconvert.parity.verification import verify_checkpoint
from vitconvert.sources import locate


def test_each_token_is_measured_in_the_whole_layers_scale():
    theirs = torch.randint(-7, 8, (2, 5, 7)).double()
    theirs[1, 0, 3] = -8.0
    ours = theirs.clone()
    ours[0, 2, 6] += 4.0
    ours[1, 4, 0] -= 1.0
    ours[0, 4, 1] += 0.5
    found = token_differences(ours, theirs)
    assert found == (0.0, 0.0, 0.5, 0.0, 0.12)
    assert max(found) == relative_difference(ours, theirs)


def test_what_is_no_number_is_infinite():
    theirs = torch.ones(1, 4, 3)
    ours = theirs.clone()
    ours[0, 1, 2], ours[0, 3, 0] = math.nan, math.inf
    assert token_differences(ours, theirs) == (0.0, math.inf, 0.0, math.inf)
    assert token_differences(theirs, torch.zeros(1, 4, 3)) == (math.inf,) * 4


def test_layers_without_tokens_have_none():
    assert token_differences(torch.ones(2, 5), torch.zeros(2, 5)) == ()
    assert token_differences(torch.ones(2, 5, 3), torch.ones(2, 4, 3)) == ()


def test_one_wrong_position_is_seen_at_its_token(timm_checkpoint):
    checkpoint = read_checkpoint(locate(timm_checkpoint()))
    model = copy.deepcopy(build_model(checkpoint))  # whose weights are not those of the file
    with torch.no_grad():
        model.pos_embed[0, 4] += 1.0
    divergence = verify_checkpoint(checkpoint, model=model).first_divergence
    assert divergence.layer == "embedding"
    assert divergence.grid == model.config.grid_size
    down, across = divergence.grid
    assert len(divergence.positions) == down * across + 1
    assert [i for i, value in enumerate(divergence.positions) if value > 1e-9] == [4]
