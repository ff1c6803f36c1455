"""The site is built of the repository, without a warning, without a network, and whole."""

import functools
import json
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

import vitconvert
from tests.hub_server import HubServer
from tests.matrix_sources import SOURCES
from tests.packages import timm
from tests.pictures.chromium import CHROMIUM, Browser
from tests.small_models import small_timm
from vitconvert.cli import VERBS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site needs '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs.yml"]
    built = subprocess.run([*command, "-d", folder], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def _headings(page: Path) -> set[str]:
    return set(re.findall(r'<h2 id="([^"]+)"', page.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_the_site_is_whole(site):
    listed = (site / "reference/api/index.html").read_text(encoding="utf-8")
    for name in vitconvert.__all__:
        assert f'href="../{name}/"' in listed, "the API lists each name"
        page = (site / f"reference/{name}/index.html").read_text(encoding="utf-8")
        assert f"<title>{name} - vitconvert" in page
        assert 'class="doc doc-object' in page, name
    assert _headings(site / "reference/command-line/index.html") == set(VERBS)
    options = (site / "reference/ReadArguments/index.html").read_text(encoding="utf-8")
    assert "lora_scale" in options, "options of reading are listed"
    assert not list(site.rglob("*.md")), "every document is a page"


@pytest.mark.slow
def test_long_tables_have_pages_of_their_own(site):
    text = (site / "conversions/index.html").read_text(encoding="utf-8")
    for name in ("dialects", "matrix", "classes"):
        table = (site / f"tables/{name}/index.html").read_text(encoding="utf-8")
        assert f'href="../tables/{name}/"' in text
        assert len(re.findall("<tr>", table)) > 40
    assert len(re.findall("<tr>", text)) < 80


@pytest.mark.slow
def test_pages_ask_no_other_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        asked = re.findall(r'<(?:script|img|link|iframe)[^>]* (?:src|href)="?(?:https?:)?//', text)
        assert not asked, page
        assert "<!-- every" not in text, page


@pytest.fixture(scope="module")
def page(site, tmp_path_factory):
    """The page that inspects, in Chromium, which reaches no other host than this one."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    if not (site / "inspect/pyodide").is_dir():
        pytest.skip("the site is built without Pyodide (npm ci --prefix docs)")
    handler = functools.partial(_Quiet, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        browser = Browser(tmp_path_factory.mktemp("profile"))
        browser.go(f"http://127.0.0.1:{server.server_address[1]}/inspect/")
        browser.wait("document.getElementById('inspect')?.hidden === false")
        yield browser
        browser.close()
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _answer(page: Browser) -> str:
    page.wait("document.getElementById('inspect').dataset.answered === 'yes'", 120)
    assert page.complaints == []
    return page.run("document.querySelector('#inspect .answer').innerText")


def _dropped(page: Browser, *files: Path) -> str:
    page.choose("#inspect input[type=file]", *files)
    page.wait("document.getElementById('inspect').dataset.answered")
    return _answer(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "dialect", "command"),
    [
        ("hf", "hf_vit", "vitconvert convert model.safetensors --to timm --allow"),
        ("jax", "google_jax", "vitconvert convert model.npz --to timm"),
        ("timm", "timm", "vitconvert convert pytorch_model.bin --to hf"),
    ],
)
def test_a_file_is_inspected_in_the_browser(source, dialect, command, page, tmp_path):
    SOURCES[source].write(tmp_path / "model")
    text = _dropped(page, *(tmp_path / "model").iterdir())
    assert f"{dialect}: " in text
    assert "Targets that hold it as it is" in text
    assert command in text


@pytest.mark.slow
def test_a_folder_is_dropped(page, tmp_path):
    SOURCES["hf"].write(tmp_path / "model")
    page.run("document.querySelector('#inspect .drop').scrollIntoView({block: 'center'})")
    box = "document.querySelector('#inspect .drop').getBoundingClientRect()"
    x, y = page.run(f"(({{x, y}}) => [x + 9, y + 9])({box})")
    page.run("document.getElementById('inspect').dataset.answered = ''")
    page.drop(x, y, tmp_path / "model")
    assert "hf_vit: " in _answer(page)


@pytest.mark.slow
def test_what_the_tensors_do_not_show_is_asked(page, tmp_path):
    torch.save(small_timm(img_size=32, embed_dim=48, mlp_ratio=4).state_dict(), tmp_path / "vit.pt")
    text = _dropped(page, tmp_path / "vit.pt")
    assert "What only you can tell" in text
    assert "Targets" not in text
    page.run("document.querySelector('.questions input').value = '3'")
    page.run("document.querySelector('.questions button').click()")
    text = _answer(page)
    assert re.search(r"num_heads\s+3\s+user", text)
    assert "vitconvert convert vit.pt --to hf --set num_heads=3" in text


@pytest.mark.slow
def test_of_seven_gigabytes_the_header_alone_is_read(page, tmp_path):
    with torch.device("meta"):
        state = timm.create_model("vit_gigantic_patch14_224").state_dict()
    header, end = {}, 0
    for name, tensor in state.items():
        offsets = [end, end := end + 4 * tensor.numel()]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    file = tmp_path / "large.safetensors"
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    assert file.stat().st_size > 7e9
    assert re.search(r"1,84\d,\d{3},\d{3} parameters", _dropped(page, file))


@pytest.mark.slow
def test_a_hostile_header_is_text(page, tmp_path):
    evil = "<img src=x onerror=alert(1)>\u202e"
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for claimed in (2, 2**40):
        text = json.dumps({evil: {**entry, "shape": [claimed]}}).encode()
        file = tmp_path / "evil.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
        told = _dropped(page, file)
        assert told.startswith("error: corrupt-file\n  '<img src=x onerror=alert(1)>\\u202e' does")
        assert page.run("document.querySelector('#inspect .answer img')") is None
    file.write_bytes((2**20).to_bytes(8, "little") + b"{}")
    assert "The file is truncated." in _dropped(page, file)


@pytest.mark.slow
def test_of_a_repository_the_header_alone_is_fetched(page, tmp_path):
    SOURCES["hf"].write(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with HubServer({"org/vit": files}) as hub:
        hub.faults.redirect = True  # as the Hub does, to another host
        page.run(f"document.getElementById('inspect').dataset.hub = '{hub.endpoint}'")
        page.run("document.querySelector('#inspect form input').value = 'org/vit'")
        page.run("document.querySelector('#inspect form button').click()")
        assert "vitconvert convert hf:org/vit --to timm --allow" in _answer(page)
        asked = [one for one in hub.requests if one.path.endswith("model.safetensors")]
        assert [one.headers["range"] for one in asked] == ["bytes=0-131071"] * 2
        assert len(files["model.safetensors"]) > 2**19
        hub.gated.add("org/vit")
        page.run("document.querySelector('#inspect form button').click()")
        page.wait("document.querySelector('#inspect .answer').innerText.includes('answers 403')")
        page.run("document.querySelector('#inspect form input').value = 'org/none'")
        page.run("document.querySelector('#inspect form button').click()")
        page.wait("document.querySelector('#inspect .answer').innerText.includes('401')")
        page.complaints.clear()  # Chromium logs the answer 401
