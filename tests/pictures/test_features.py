"""Components, similarity and norms, against scikit-learn, transformers and NumPy."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.huggingface.classes import CLASSES, encoder, inputs
from tests.packages import sklearn
from tests.pictures.conftest import squashed
from vitconvert import load_model
from vitconvert.errors import UsageError
from vitconvert.pictures.components import coloured_components, otsu, principal_axes
from vitconvert.pictures.features import feature_maps

TOKENS = {"num_registers": 2}


def test_axes_are_those_of_scikit_learn():
    torch.manual_seed(3)
    for rows, width in ((90, 17), (9, 17)):
        tokens = torch.randn(rows, width) @ torch.randn(width, width) + 5
        theirs = sklearn.decomposition.PCA(3, svd_solver="full").fit(tokens.double().numpy())
        mean, axes, shares = principal_axes(tokens, 3)
        np.testing.assert_allclose(mean, theirs.mean_, atol=1e-9)
        signs = np.sign((axes.numpy() * theirs.components_).sum(1))
        np.testing.assert_allclose(axes, signs[:, None] * theirs.components_, atol=1e-6)
        np.testing.assert_allclose(shares, theirs.explained_variance_ratio_, atol=1e-9)
        assert (axes.gather(1, axes.abs().argmax(1, keepdim=True)) > 0).all()


def scenes(count=3, side=9, width=20):
    """Photographs of tokens: a disc in the middle, with features of its own and a gradient."""
    torch.manual_seed(7)
    basis = torch.randn(4, width)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    found = []
    for number in range(count):
        disc = (rows - 4) ** 2 + (columns - 3 - number % 2) ** 2 <= 9
        shape = 8 * disc[..., None] * basis[0] + disc[..., None] * (
            rows[..., None] / side * basis[1] + columns[..., None] / side * basis[2]
        )
        found.append((shape + 0.1 * torch.randn(side, side, width), disc))
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_the_foreground_is_found(sign):
    found = scenes()
    basis, colours, foreground = coloured_components([sign * tokens for tokens, _ in found])
    for (_, disc), chosen, colour in zip(found, foreground, colours, strict=True):
        assert torch.equal(chosen, disc)
        assert (colour[~disc] == 0).all()
        assert float(colour.min()) >= 0 and float(colour.max()) <= 1
    assert 0.1 < basis.threshold < 0.9
    assert len(basis.explained) == 3 and basis.explained[0] > basis.explained[1] > 0
    every = torch.cat([colour[disc] for (_, disc), colour in zip(found, colours, strict=True)])
    assert torch.equal(every.amin(0), torch.zeros(3)) and torch.equal(every.amax(0), torch.ones(3))


def test_the_colours_are_components_of_the_foreground():
    found = scenes()
    _, colours, foreground = coloured_components([tokens for tokens, _ in found])
    chosen = torch.cat([tokens[mask] for (tokens, _), mask in zip(found, foreground, strict=True)])
    theirs = sklearn.decomposition.PCA(3, svd_solver="full").fit_transform(chosen.double().numpy())
    scaled = (theirs - theirs.min(0)) / np.ptp(theirs, axis=0)
    ours = torch.cat([c[mask] for c, mask in zip(colours, foreground, strict=True)]).numpy()
    for ours_, theirs_ in zip(ours.T, scaled.T, strict=True):
        assert min(np.abs(ours_ - theirs_).max(), np.abs(ours_ - 1 + theirs_).max()) < 1e-5


def test_one_colour_means_the_same_in_all_photographs():
    (first, _), (second, _), _ = scenes()
    second[4, 4] = first[4, 4]
    _, colours, _ = coloured_components([first, second])
    torch.testing.assert_close(colours[0][4, 4], colours[1][4, 4])
    alone = coloured_components([first])[1][0]
    assert (alone - colours[0]).abs().max() > 1e-3


def test_a_threshold_and_no_background():
    tokens = [tokens for tokens, _ in scenes()]
    counts = [
        sum(int(mask.sum()) for mask in coloured_components(tokens, threshold)[2])
        for threshold in (0.99, 0.9)
    ]
    assert 0 < counts[0] < counts[1]
    basis, colours, every = coloured_components(tokens, background=False)
    assert basis.threshold is None and all(mask.all() for mask in every)
    assert (torch.stack(colours) > 0).float().mean() > 0.99


@pytest.mark.parametrize("shape", [(1, 1, 20), (1, 5, 20), (3, 3, 1), (2, 2, 2)])
def test_few_patches_and_narrow_models(shape):
    basis, [colours], [mask] = coloured_components([torch.randn(shape)])
    assert colours.shape == (*shape[:2], 3) and mask.shape == shape[:2]
    assert colours.isfinite().all() and np.isfinite(basis.explained).all()


def test_constant_tokens_are_no_error():
    _, [colours], _ = coloured_components([torch.ones(3, 3, 5)])
    assert colours.isfinite().all()


@pytest.mark.parametrize("apart", [True, False])
def test_otsu_separates_best(apart):
    torch.manual_seed(1)
    low, high = torch.rand(40) * 0.3, 0.6 + torch.rand(70) * 0.4
    if not apart:  # a few, and many that overlap them
        low, high = 0.3 + torch.randn(300) / 9, 0.6 + torch.randn(40) / 9
    values = (torch.cat([low, high]).clamp(0, 1) * 255).round() / 255 * 0.999 + 5e-4

    def between(threshold):
        low, high = values[values <= threshold], values[values > threshold]
        return len(low) * len(high) * float(low.mean() - high.mean()) ** 2

    best = max(between(t) for t in np.linspace(0.01, 0.99, 99))
    assert between(otsu(values)) == pytest.approx(best, rel=1e-6 if apart else 1e-3)
    assert 0.3 < otsu(values) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["DINOv2, registers", "DINOv3", "SigLIP"])
def test_tokens_and_norms_are_huggingfaces(name, save, noise):
    folder, theirs = save(CLASSES[name])
    ours = load_model(folder)
    [found] = feature_maps(ours, noise, squashed(ours.config))
    given = inputs(theirs, squashed(ours.config)(noise)[None])
    with torch.no_grad():
        made = encoder(theirs)(**given, output_hidden_states=True)
    tokens, first = made.last_hidden_state[0], len(found.prefix)
    torch.testing.assert_close(found.tokens, tokens, rtol=1e-4, atol=1e-5)
    lengths = [states[0, first:].norm(dim=-1) for states in made.hidden_states]
    wanted = [(float(each.median()), float(each.max())) for each in lengths[1:]]
    np.testing.assert_allclose(found.norms_by_block[:-1], wanted[:-1], rtol=1e-4)
    stream = ours.hidden_states(squashed(ours.config)(noise)[None])[-1][0]
    torch.testing.assert_close(found.norms, stream.norm(dim=-1))
    patches = tokens[first:]
    cosine = patches @ patches[4] / (patches.norm(dim=-1) * patches[4].norm())
    place = divmod(4, found.grid[1])
    torch.testing.assert_close(found.similarity(place).flatten(), cosine, rtol=1e-4, atol=1e-5)
    assert float(found.similarity(place)[place]) == pytest.approx(1)


def test_outliers_are_named(small, noise):
    model = small(**TOKENS)
    [found] = feature_maps(model, noise, squashed(model.config))
    assert found.outliers == []
    found.norms[3 + 7] *= 40  # the patch in row 2, column 1
    told = found.to_dict()["norms"]
    assert found.outliers == [(2, 1)] and told["outliers"] == [[2, 1]]
    assert told["largest"] == pytest.approx(float(found.norms[10]))
    assert list(told["prefix"]) == ["class", "register:0", "register:1"]
    assert np.array(told["patches"]).shape == (4, 3)


def test_pictures_of_features(small, noise):
    model = small()
    [found] = feature_maps(model, noise, squashed(model.config))
    for kind in ("components", "norms", "similarity"):
        assert found.picture(kind).size == noise.size
        assert found.picture(kind, raw=True).size == noise.size
    flat = np.asarray(found.picture("components", raw=True))
    wanted = (found.colours[0, 0] * 255).round().numpy()
    assert (flat[2, 2, :3] == wanted).all()
    with pytest.raises(UsageError, match="There is no image of 'colours'"):
        found.picture("colours")


def test_photographs_that_cannot_be_read_keep_their_place(small, noise, tmp_path):
    (tmp_path / "bad.png").write_text("meow")
    model = small()
    steps = squashed(model.config)
    bad, good = feature_maps(model, [tmp_path / "bad.png", noise], steps)
    assert bad.error.code == "corrupt-file" and good.error is None
    [bad] = feature_maps(model, tmp_path / "bad.png", steps)
    assert bad.error.code == "corrupt-file"
    with pytest.raises(UsageError, match=r"must be from 0 to 1, not 1\.5"):
        feature_maps(model, Image.new("RGB", (9, 9)), steps, foreground=1.5)
