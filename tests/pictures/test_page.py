"""The page as Chromium shows it: a patch is clicked, and the pixels say what it attends to."""

import dataclasses
import html
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.pictures.chromium import CHROMIUM, Browser
from tests.pictures.conftest import squashed
from vitconvert.errors import UsageError
from vitconvert.pictures.features import feature_maps
from vitconvert.pictures.maps import AttentionMaps, attention_maps
from vitconvert.pictures.overlay import palette
from vitconvert.pictures.page import packed, page
from vitconvert.pictures.view import View

EVIL = "</script><img src=x onerror=alert(1)>\u202e\x1b[2J.png"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture
def shown(browser, tmp_path):
    """Show a page; nothing is fetched and no script fails."""

    def show(views, **options):
        file = tmp_path / "page.html"
        file.write_text(page((v.panel() for v in views), **options), encoding="utf-8")
        browser.open(file)
        browser.run("document.getElementById('opacity').value = 100")
        browser.run("document.getElementById('opacity').dispatchEvent(new Event('input'))")
        return browser

    yield show
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in browser.requests if url.startswith("file:")]) <= 1


class Watched:
    """One view on the screen."""

    def __init__(self, browser, number=0):
        box = f"document.querySelectorAll('.seen')[{number}].getBoundingClientRect()"
        part = f"(({{top, left, width, height}}) => [top, left, width, height])({box})"
        self.top, self.left, self.width, self.height = browser.run(part)
        self.browser, self.number = browser, number

    def place(self, grid, row, column):
        """The middle of a patch: x and y."""
        down = self.top + (row + 0.5) * self.height / grid[0]
        return self.left + (column + 0.5) * self.width / grid[1], down

    def colours(self, grid):
        """The colour of each patch's middle, (rows, columns, 3)."""
        screen = self.browser.look()
        return np.array(
            [
                [screen.getpixel(tuple(map(int, self.place(grid, r, c)))) for c in range(grid[1])]
                for r in range(grid[0])
            ]
        )

    @property
    def said(self):
        return self.browser.run(f"document.querySelectorAll('.said')[{self.number}].textContent")


def seen_as(values):
    """The colours of a map, of which a fiftieth at either end does not count."""
    values = values.double().numpy()
    ordered = np.sort(values, axis=None)
    least, most = ordered[len(ordered) // 50], ordered[-1 - len(ordered) // 50]
    share = (values.clip(least, most) - least) / (most - least)
    return palette()[np.rint(share * 255).astype(int)]


def alike(found, values, levels=256):
    """Whether colours are those of numbers, but for what is lost with few levels."""
    distance = np.abs(found.astype(int) - seen_as(values).astype(int)).max()
    return distance <= 3 + 2 * 256 / levels


def viewed(model, image, *, features=False, name=""):
    steps = squashed(model.config)
    [maps] = attention_maps(model, image, steps)
    found = feature_maps(model, image, steps)[0] if features else None
    return View(maps=maps, features=found, model=name)


TOKENS = {"num_registers": 2}


@pytest.mark.slow
def test_a_click_shows_what_the_patch_attends_to(small, noise, shown):
    view = viewed(small(depth=4, **TOKENS), noise)
    browser, maps = shown([view]), view.maps
    watched = Watched(browser)
    assert alike(watched.colours(maps.grid), maps.map())
    assert watched.said.startswith("block 3, mean over heads, seen from class: patches from ")
    for row, column in ((0, 0), (3, 2), (2, 1)):
        browser.click(*watched.place(maps.grid, row, column))
        assert alike(watched.colours(maps.grid), maps.map(query=(row, column)))
        assert f"seen from patch {row}, {column}:" in watched.said
    shares = maps.prefix_shares(query=(2, 1))
    assert all(
        f"{name} {float(f'{share:.2g}'):g}" in watched.said for name, share in shares.items()
    )
    # Another patch is looked at without a click; then the one that was clicked is back.
    browser.move(*watched.place(maps.grid, 1, 2))
    assert alike(watched.colours(maps.grid), maps.map(query=(1, 2)))
    browser.move(2, 2)
    assert alike(watched.colours(maps.grid), maps.map(query=(2, 1)))
    assert not alike(watched.colours(maps.grid), maps.map(query=(1, 2)))


@pytest.mark.slow
def test_keys_and_sliders_choose_blocks_heads_and_queries(small, noise, shown):
    view = viewed(small(depth=4, **TOKENS), noise)
    browser, maps = shown([view]), view.maps
    watched = Watched(browser)
    for keys, asked in (
        (["ArrowLeft"], {"layer": 2}),
        (["ArrowUp", "ArrowUp"], {"layer": 2, "head": 1}),
        (["ArrowLeft"] * 9, {"layer": 0, "head": 1}),
        (["m"], {"layer": 0, "head": 1, "query": "mean"}),
        (["ArrowDown"] * 4, {"layer": 0, "query": "mean"}),
        (["r"], {"layer": "rollout", "query": "mean"}),
        (["c"], {"layer": "rollout"}),
        (["r", "ArrowRight"], {"layer": 1}),
    ):
        for key in keys:
            browser.press(key)
        assert alike(watched.colours(maps.grid), maps.map(**asked)), (keys, watched.said)
        least, most = re.search(r"patches from (\S+) to ([^;]+);", watched.said).groups()
        told = maps.to_dict(**asked)
        assert float(least) == pytest.approx(told["smallest"], rel=0.1)
        assert float(most) == pytest.approx(told["largest"], rel=0.1)
    browser.press("ArrowRight", shift=True)  # from the middle, 2, 1
    assert alike(watched.colours(maps.grid), maps.map(1, None, (2, 2)))
    browser.press("ArrowUp", shift=True)
    assert alike(watched.colours(maps.grid), maps.map(1, None, (1, 2)))
    browser.press("Escape")
    assert alike(watched.colours(maps.grid), maps.map(1))
    for id_, value, asked in (("layer", 3, {"layer": 3}), ("head", 3, {"head": 2})):
        browser.run(f"document.getElementById('{id_}').value = {value}")
        browser.run(f"document.getElementById('{id_}').dispatchEvent(new Event('input'))")
        assert alike(watched.colours(maps.grid), maps.map(**asked))
    browser.run("document.getElementById('token').value = 'register:1'")
    browser.run("document.getElementById('token').dispatchEvent(new Event('input'))")
    assert alike(watched.colours(maps.grid), maps.map(head=2, query="register:1"))
    for key in ("ArrowLeft", "m", "r"):  # the browser's own
        browser.press(key, control=True)
    assert alike(watched.colours(maps.grid), maps.map(head=2, query="register:1"))
    browser.run("document.getElementById('opacity').value = 40")
    browser.run("document.getElementById('opacity').dispatchEvent(new Event('input'))")
    assert browser.run("document.querySelector('.seen canvas').style.opacity") == "0.4"
    browser.press(" ")
    plain = watched.colours(maps.grid)
    picture = view.maps.photograph.picture()
    assert not alike(plain, maps.map(head=2, query="register:1"))
    middle = picture.getpixel((picture.width // 2, picture.height // 8))
    assert np.abs(plain[0, 1] - middle).max() < 120  # noise, and the browser smooths it


@pytest.mark.slow
def test_two_models_and_two_photographs_side_by_side(small, noise, photograph, shown):
    """A patch is clicked in one model, and the same place is looked at in the other."""
    coarse = small(depth=3)
    fine = small(
        depth=2, image_size=(64, 72), num_heads=2, head_dim=15, class_token=False, pooling="map"
    )
    other = photograph(64, 90)
    views = [
        viewed(m, image, name=n)
        for image in (noise, other)
        for m, n in ((coarse, "one"), (fine, "two"))
    ]
    browser = shown(views)
    names = browser.run("[...document.querySelectorAll('.name')].map((n) => n.textContent)")
    assert names == ["in memory · one", "in memory · two"] * 2
    maps = [view.maps for view in views]
    first, second, third, fourth = (Watched(browser, number) for number in range(4))
    assert alike(second.colours(maps[1].grid), maps[1].map(query="pooling"))
    assert second.said.startswith("map pooling, mean over heads: ")
    browser.click(*first.place(maps[0].grid, 3, 1))
    assert alike(first.colours(maps[0].grid), maps[0].map(query=(3, 1)))
    assert alike(second.colours(maps[1].grid), maps[1].map(query=(7, 4)))  # of 8 x 9
    assert alike(third.colours(maps[2].grid), maps[2].map())
    assert alike(fourth.colours(maps[3].grid), maps[3].map())
    browser.press("ArrowLeft")
    assert alike(first.colours(maps[0].grid), maps[0].map(1, query=(3, 1)))


@pytest.mark.slow
def test_features_are_shown(small, noise, shown):
    view = viewed(small(**TOKENS), noise, features=True)
    browser, features = shown([view]), view.features
    watched, grid = Watched(browser), view.maps.grid

    def show(what):
        browser.run(f"document.getElementById('what').value = '{what}'")
        browser.run("document.getElementById('what').dispatchEvent(new Event('input'))")

    show("similarity")
    browser.click(*watched.place(grid, 3, 0))
    assert alike(watched.colours(grid), features.similarity((3, 0)))
    show("norms")
    assert alike(watched.colours(grid), features.patch_norms)
    show("components")
    wanted = (features.colours * 255).round().numpy()
    assert np.abs(watched.colours(grid) - wanted).max() <= 2


@pytest.mark.slow
def test_all_heads_side_by_side_and_the_classes(small, noise, shown):
    view = viewed(small(depth=2, **TOKENS), noise)
    browser = shown([view])
    assert browser.run("document.querySelector('.heads').hidden")
    said = browser.run("document.querySelector('.classes').textContent")
    assert said == f"predicted: {view.maps.classes}" and said.count("%") == 3
    browser.press("h")
    names = "[...document.querySelectorAll('.heads span')].map((s) => s.textContent)"
    assert browser.run(names) == ["mean", "head 0", "head 1", "head 2"]
    pixels = (
        "[...document.querySelectorAll('.heads canvas')].map((c) => "
        "[...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])"
    )
    for head, found in zip((None, 0, 1, 2), browser.run(pixels), strict=True):
        colours = np.array(found).reshape(*view.maps.grid, 4)[..., :3]
        assert alike(colours, view.maps.map(head=head))


@pytest.mark.slow
def test_a_head_of_a_large_model_is_seen_from_squares(small, noise, shown, monkeypatch):
    """5 x 4 patches: the last squares have fewer."""
    view = viewed(small(depth=2, image_size=(40, 32)), noise)
    maps = view.maps
    monkeypatch.setattr("vitconvert.pictures.page._SQUARES", (2,))
    browser = shown([view])
    watched = Watched(browser)
    for asked, patches in (((1, 2), [(0, 2), (0, 3), (1, 2), (1, 3)]), ((4, 3), [(4, 2), (4, 3)])):
        browser.click(*watched.place(maps.grid, *asked))
        assert alike(watched.colours(maps.grid), maps.map(query=asked))
        browser.press("ArrowUp")
        mean = torch.stack([maps.map(head=0, query=patch) for patch in patches]).mean(0)
        assert alike(watched.colours(maps.grid), mean)
        assert "(mean of a square of 2 by 2)" in watched.said
        browser.press("ArrowDown")
    for key in ("ArrowUp", "m"):
        browser.press(key)
    assert alike(watched.colours(maps.grid), maps.map(head=0, query="mean"), levels=64)


@pytest.mark.slow
def test_what_was_cropped_away_is_dark_and_no_patch(small, shown):
    model = small()
    light = Image.new("RGB", (120, 40), (250, 250, 250))
    steps = squashed(model.config, resize="shortest", resize_size=(32, 32), crop=True)
    [maps] = attention_maps(model, light, steps)
    browser = shown([View(maps=maps)])
    frame = browser.run(
        "(({top, left, width, height}) => [top, left, width, height])"
        "(document.querySelector('.frame').getBoundingClientRect())"
    )
    watched = Watched(browser)
    # 32 x 96 before the crop to 24 columns: 36 are cut off on each side.
    assert watched.left - frame[1] == pytest.approx(frame[2] * 36 / 96, abs=1)
    assert watched.width == pytest.approx(frame[2] * 24 / 96, abs=1)
    screen = browser.look()
    outside = screen.getpixel((int(frame[1] + 10), int(frame[0] + frame[3] / 2)))
    assert max(outside) < 100
    before = watched.colours(maps.grid)
    browser.click(frame[1] + 10, frame[0] + frame[3] / 2)
    assert (watched.colours(maps.grid) == before).all()


@pytest.mark.slow
def test_names_of_others_stay_text(small, noise, shown, tmp_path):
    folder = tmp_path / "names"
    folder.mkdir()
    path = folder / EVIL.replace("/", "_")
    noise.save(path)
    view = viewed(small(), path, name="<b>bold</b></script><script>alert(1)</script>")
    browser = shown([view], title="<i>" + EVIL)
    assert browser.run("document.querySelectorAll('#views img').length") == 1
    assert browser.run("document.querySelectorAll('b, i').length") == 0
    name = browser.run("document.querySelector('.name').textContent")
    assert name.endswith("onerror=alert(1)>\\u202e\\x1b[2J.png · " + view.model)
    assert browser.run("document.title").startswith("<i></script><img src=x")


def bytes_of_a_page(maps, photograph):
    text = page([View(maps=dataclasses.replace(maps, photograph=photograph)).panel()])
    data = json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))
    return len(text.encode()), data["views"][0]


@pytest.mark.slow
@pytest.mark.parametrize(("sharp", "levels", "side"), [(0.1, 32, 3), (1.0, 16, 2), (3.0, 64, 2)])
def test_base_at_224_has_at_most_a_megabyte_and_a_half(small, sharp, levels, side):
    """Attention as even as noise, and as sharp as that of trained models."""
    config = small(image_size=(224, 224), patch_size=(16, 16)).config
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1600, 3), dtype=np.uint8)
    [found] = attention_maps(
        small(image_size=(224, 224), patch_size=(16, 16), depth=1),
        Image.fromarray(pixels),
        squashed(config),
    )
    torch.manual_seed(1)
    scores = torch.randn(12, 12, 197, 197)
    maps = AttentionMaps(
        photograph=found.photograph,
        prefix=("class",),
        depth=12,
        attention=dict(enumerate((scores * sharp).softmax(-1))),
        pooling=None,
        flow=found.flow,
    )
    size, view = bytes_of_a_page(maps, found.photograph)
    assert 1_000_000 < size < 1_500_000
    assert view["levels"] == levels
    squares = 1 + (-(-14 // side)) ** 2
    assert view["planes"][:2] == [
        *(["attention", 0, "mean", 197, 1], ["attention", 0, 0, squares, side])
    ]
    assert len(view["planes"]) == 12 * 13 + 1


def test_error_too_much_for_a_page(small, noise, monkeypatch):
    maps = viewed(small(), noise).maps
    planes = list(maps.planes())
    whole = packed(planes, 1, maps.grid)
    assert whole["levels"] == 256
    assert packed(planes, 1, maps.grid, most=len(whole["data"]) - 1)["levels"] == 128
    with pytest.raises(UsageError, match="The maps are too many for a page"):
        packed(planes, 1, maps.grid, most=100)
    with pytest.raises(UsageError, match="There is no head 3"):
        View(maps=maps).panel([3])
    with pytest.raises(UsageError, match="The model has no token 'patch:9,9'"):
        View(maps=maps).panel(None, (9, 9))
    panel = View(maps=maps).panel()
    monkeypatch.setattr("vitconvert.pictures.page._MOST_OF_ALL", len(whole["data"]))
    assert page([panel])
    with pytest.raises(UsageError, match="too many images for one page"):
        page([panel, panel])


def test_a_page_begins_with_the_query_that_was_asked_for(small, noise):
    view = viewed(small(), noise)
    assert view.panel(None, "patch:3,1").query == (3, 1)
    assert view.panel(None, "mean").query == "mean"


def test_in_a_notebook_it_is_a_frame_of_its_own(small, noise):
    view = viewed(small(), noise, features=True)
    shown = view.maps._repr_html_()
    [inside] = re.findall(r'<iframe sandbox="allow-scripts" srcdoc="([^"]*)"', shown)
    assert html.unescape(inside) == view.maps.to_html()
    assert view.maps._repr_png_().startswith(b"\x89PNG")
    assert view.features._repr_html_().count('<img src="data:image/png;base64,') == 3
