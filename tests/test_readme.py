"""The README is short and true, as are the pages that it leads to.

Their examples run, their commands exist, their links lead somewhere.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from tests.make_dialects import BEGIN, CONVERSIONS, filled
from tests.pages import write_files
from vitconvert.cli import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
# Pages whose commands and examples run here; each command once.
TYPED = ("README.md", "docs/pages/commands.md", "docs/pages/python.md")
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/pages/**/*.md"))
DOCUMENTS = (
    "README.md",
    "benchmarks/README.md",
    "docs/changelog.md",
    "docs/policy.md",
    "docs/security.md",
    *PAGES,
    "tests/coverage/README.md",
    "vitconvert/README.md",
    "vitconvert/runtimes/README.md",
    "vitconvert/embedding/README.md",
    "vitconvert/testing/README.md",
    "weights_map/ANY_VIT.md",
    "weights_map/CONVERSIONS.md",
    "weights_map/README.md",
)
DOWNLOADING = ("timm", "hf", "jax", "torchvision", "dino")


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _text(page), flags=re.DOTALL)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the examples name."""
    folder = tmp_path_factory.mktemp("files")
    torch.set_num_threads(1)
    write_files(folder)
    return folder


@pytest.fixture
def workplace(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, in which the examples run."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_two_screens():
    assert TEXT.count("\n") <= 90 and len(TEXT.encode()) < 6000
    assert max(map(len, TEXT.splitlines())) <= 100


def test_it_opens_with_the_two_commands():
    first, second = _blocks("sh")[:2]
    assert first == "pip install . && vitconvert demo\n"
    assert second == "pip install -e '.[test]' && pytest\n"
    assert "pip install --quiet -e '.[test]'" in CI


def test_ci_runs_what_the_command_leaves_out():
    lines = CI.splitlines()
    assert 0 < lines.index("pytest") < lines.index("pytest -m slow")


def test_the_table_of_dialects_is_up_to_date():
    text = CONVERSIONS.read_text(encoding="utf-8")
    assert BEGIN in text and filled(text) == text, "run: python -m tests.make_dialects"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in (link for link in links if not link.startswith("https://")):
        path, _, section = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.is_file(), link
        assert not section or section in _sections(target), link


def _sections(document: Path) -> list[str]:
    """The headings, as links name them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_it_leads_to_what_readers_look_for():
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", TEXT)}
    project = ("LICENSE", ".github/CONTRIBUTING.md", "docs/security.md", "docs/changelog.md")
    starts = ("commands", "python", "audit", "proof", "use-it-like-timm", "vit-weights-explained")
    pages = (f"docs/pages/{name}.md" for name in (*starts, "tutorials/index", "errors/index"))
    assert {*project, *pages} <= links


def test_the_site_lists_every_document():
    listed = _text("docs/mkdocs.yml")
    for page in PAGES:
        assert f" {page.removeprefix('docs/pages/')}\n" in listed, page


def test_it_has_the_names_that_people_search():
    names = "timm transformers state_dict safetensors DINOv3 SigLIP CLIP SAM Qwen3-VL JAX .npz"
    more = "Keras .h5 GGUF mmproj MLX LoRA Lightning audit MAE DeiT jeonsworld torchvision"
    assert [name for name in f"{names} {more}".split() if name not in TEXT] == []


@pytest.mark.parametrize("page", ["README.md", "docs/pages/python.md"])
def test_python_examples(page, workplace):
    scope: dict[str, object] = {}
    for block in _blocks("python", page):
        exec(compile(block, page, "exec"), scope)
    assert [*workplace.glob("vit-*/model.safetensors")]


def _commands(*, online: bool) -> list[list[str]]:
    """The command lines of tables and blocks, without their comments."""
    lines: list[str] = []
    for page in TYPED:
        lines += re.findall(r"`(vitconvert .+)` \|$", _text(page), flags=re.MULTILINE)
        lines += [line for block in _blocks("sh", page) for line in block.splitlines()]
    typed = [shlex.split(line, comments=True)[1:] for line in lines if not line.startswith("pip")]
    commands = [one for n, one in enumerate(typed) if one and one not in typed[:n]]
    return [command for command in commands if _needs_network(command) == online]


def _needs_network(command: list[str]) -> bool:
    verb, model = command[:2]
    file = model.endswith((".npz", ".pt", ".pth", ".bin"))
    named = (verb in DOWNLOADING and not file) or model.startswith(("hf:", "timm:"))
    return named and "--no-pretrained" not in command


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(_commands(online=False))))
def test_commands(number, workplace, capsys):
    commands = _commands(online=False)
    needed = [c for c in commands if "-o" in c and c[c.index("-o") + 1] in commands[number][1:3]]
    for command in [*needed, commands[number]]:
        with pytest.raises(SystemExit) as exit_:
            main(command)
        assert exit_.value.code == 0, capsys.readouterr().err


def test_commands_that_need_a_network_at_least_parse(capsys):
    assert len(_commands(online=True)) == 9
    for command in _commands(online=True):
        with pytest.raises(SystemExit) as exit_:
            main([command[0], "--help"])
        assert exit_.value.code == 0
        options = {word for word in command if word.startswith("-")}
        assert options <= set(re.findall(r"--?[a-z-]+", capsys.readouterr().out)), command


def test_options_that_the_text_names_exist(capsys):
    text = "".join(re.sub(r"```.*?```", "", _text(page), flags=re.DOTALL) for page in TYPED)
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    known = set()
    images = ("predict", "embed", "attention")
    for verb in ("", "timm", "inspect", "verify", "golden", *images, "push", "audit"):
        with pytest.raises(SystemExit):
            main([*verb.split(), "--help"])
        known |= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert named <= known
