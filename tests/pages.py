"""Pages of docs/ as they are run, block by block: `python -m tests.pages` writes what is printed.

A block of a language and a `title` is saved under it, `python` is run, each line of `sh` must
succeed, and of `console` the lines after `$` are run, under which stands what they print; so it is
of `pycon`, a session of Python.
"""

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitconvert
from tests.matrix_sources import SOURCES, randomised
from tests.originals.spelling import filled as drawn
from tests.originals.spelling import mae_decoder, meta_vit
from tests.packages import gguf, timm, torchvision, transformers, vit_pytorch, without_noise
from tests.parity import team
from tests.small_models import small_timm
from tests.spelling import google_arrays
from tests.towers.families import FAMILIES, save
from vitconvert.cli import main
from vitconvert.demo.demonstration import DIGITS

PAGES = Path(__file__).parents[1] / "docs" / "pages"
ERRORS = sorted(page for page in PAGES.glob("errors/*.md") if page.stem != "index")
TUTORIALS = sorted(page for page in PAGES.glob("tutorials/*.md") if page.stem != "index")
REFERENCE = sorted(
    page for page in PAGES.glob("reference/*.md") if "```pycon" in page.read_text(encoding="utf-8")
)
LOADS = sorted(PAGES.glob("errors/loads/*.md"))  # by what people see of lost weights
RUN = [
    PAGES.parents[1] / "SKILL.md",
    *ERRORS,
    *TUTORIALS,
    *REFERENCE,
    *LOADS,
    *(
        PAGES / f"{name}.md"
        for name in ("audit", "proof", "function-hash", "upstream", "use-it-like-timm")
    ),
]
NOTEBOOK = PAGES / "tutorials" / "vitconvert.ipynb"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def filled(page: Path, folder: Path) -> str:
    """The text of a page with what its commands print today, run in a folder that has the files."""
    scope: dict[str, object] = {"__name__": "__main__"}

    def shown(block: re.Match[str]) -> str:
        language, title, text = block.groups()
        if title:
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, page.name, "exec"), scope)
        elif language == "sh":
            for line in text.replace("\\\n", "").splitlines():
                code, printed = typed(line)
                assert code == 0, f"{page.name}: {line}\n{printed}"
        elif language == "console":
            lines = re.findall(r"^\$ (.+)$", text, flags=re.MULTILINE)
            told = "".join(f"$ {line}\n{typed(line)[1].rstrip()}\n" for line in lines)
            return f"```console\n{told}```"
        elif language == "pycon":
            return f"```pycon\n{_session(text, scope)}```"
        return block[0]

    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patched:
        if page.stem == "missing-package":  # other modules that are imported within stay
            patched.setitem(sys.modules, "h5py", None)
        return _BLOCK.sub(shown, written(page))


def _session(text: str, scope: dict[str, object]) -> str:
    """A session of Python, with what each example prints today."""
    told = []
    for example in doctest.DocTestParser().get_examples(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "session", "single"), scope)
        first, *more = example.source.splitlines()
        told += [f">>> {first}", *(f"... {line}" for line in more)]
        told += printed.getvalue().splitlines()
    return "".join(f"{line}\n" for line in told)


def written(page: Path) -> str:
    """The text of a page; of a notebook, its cells of code, with weights that need no network."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    blocks = "".join(_block("".join(cell["source"])) for cell in cells)
    assert "PRETRAINED = True" in blocks
    return blocks.replace("PRETRAINED = True", "PRETRAINED = False")


def _block(cell: str) -> str:
    language = {"!": "sh", "%": "pip"}.get(cell[0], "python")
    return f"```{language}\n{cell.removeprefix('!')}\n```\n"


def typed(line: str) -> tuple[int, str]:
    """The exit code of a command line and what it prints, without progress."""
    words = shlex.split(line, comments=True)
    if words[0] != "vitconvert" or "|" in words or ">" in words:
        here = os.fspath(PAGES.parents[1])
        own = {**os.environ, "PYTHONPATH": os.pathsep.join([here, "."])}
        own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
        done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, env=own)
        return done.returncode, without_noise(done.stdout + done.stderr)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(words[1:])
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    text = re.sub(r"\b[0-9a-f]{64}\b", "0123456789abcdef...", printed.getvalue())
    lines = [line for line in text.splitlines() if "\r" not in line]
    long = 250  # lists of classes, which grow with the package
    return code, "\n".join(f"{line[:long]}..." if line[long:] else line for line in lines)


def write_files(folder: Path) -> None:
    """The files that README and the pages about commands and errors name."""
    google = google_arrays(depth=2, heads=3, width=48, size=48, classes=12)
    for place in (folder, folder / "models"):
        place.mkdir(exist_ok=True)
        np.savez(place / "ViT-B_16.npz", **google)
    clip = SOURCES["openai_clip"].write(folder / "clip").read_bytes()
    (folder / "mystery.pth").write_bytes(clip)
    (folder / "ViT-B-32.pt").write_bytes(clip)
    torch.save(_jeonsworld(), folder / "checkpoint.bin")
    torch.save(drawn(meta_vit() | mae_decoder()), folder / "mae.pth")
    torch.save(_lucidrains(), folder / "vit.pt")
    torch.save(_own_head().state_dict(), folder / "best.pt")
    torch.save(_own_head(dropout=False), folder / "whole.pt")
    (folder / "labels.txt").write_text("daisy\niris\npoppy\nrose\ntulip\n")
    code = "import vitconvert\n\n\ndef load(path):\n    return vitconvert.load_model(path)\n"
    (folder / "loader.py").write_text(code)
    write_team(folder)
    shutil.copytree(DIGITS, folder / "my-vit")
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    (folder / "photos").mkdir()
    for photograph in ("one.jpg", "two.png"):
        Image.fromarray(pixels).save(folder / "photos" / photograph)
    _refused(folder, google)


def write_models(folder: Path) -> None:
    """Models of transformers, for the tutorials: a fine-tuned one, and a vision-language one."""
    names = {0: "daisy", 1: "poppy", 2: "rose"}
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 3, "intermediate_size": 96, "id2label": names}
    config = transformers.ViTConfig(**sizes, **heads, label2id={v: k for k, v in names.items()})
    model = randomised(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder / "flowers")
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessor(size=size).save_pretrained(folder / "flowers")
    save(FAMILIES["llava"].model(), folder / "llava", shard="1GB")
    _lost(folder)


def _lost(folder: Path) -> None:
    """Files of which loaders lose weights, for the pages about that."""
    shutil.copytree(folder / "flowers", folder / "renamed")
    file = folder / "renamed" / "model.safetensors"
    renamed = {n.replace("query.bias", "q_bias"): t for n, t in load_file(file).items()}
    save_file(renamed, file, {"format": "pt"})
    state = randomised(torchvision.models.resnet18()).state_dict()
    torch.save({f"module.{n}": t for n, t in state.items()}, folder / "parallel.pth")
    writer = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _refused(folder: Path, google: dict[str, np.ndarray]) -> None:
    """Files that are refused, for the pages about errors."""
    torch.save(_jeonsworld() | {"aux_head.weight": torch.zeros(3)}, folder / "extra.pth")
    (folder / "half.npz").write_bytes((folder / "ViT-B_16.npz").read_bytes()[:9000])
    (folder / "wrong.toml").write_text(team.TABLE.replace("[rows]", "[rows", 1))
    np.savez(folder / "mixed.npz", **google | {"head/bias": np.zeros(13, np.float32)})
    names = [name for name in google if name.endswith(("query/bias", "key/bias"))]
    np.savez(folder / "large.npz", **google | {name: google[name] + 300 for name in names})
    (folder / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    np.savez(folder / "nan.npz", **google | {"head/bias": np.full(12, np.nan, np.float32)})
    one = small_timm(init_values=1e-5, num_classes=0).state_dict()
    two = small_timm(class_token=False, global_pool="avg", num_classes=0).state_dict()
    towers = {f"vision_backbone.featurizer.{name}": value for name, value in one.items()}
    towers |= {f"vision_backbone.fused_featurizer.{name}": value for name, value in two.items()}
    save_file(towers, folder / "openvla.safetensors")
    vitconvert.convert(folder / "ViT-B_16.npz", to="jax", output=folder / "edited", verify=False)
    with (folder / "edited" / "model.npz").open("ab") as file:
        file.write(b"!")


def _own_head(*, dropout: bool = True) -> torch.nn.Module:
    """A timm model whose head was replaced by a linear layer, behind dropout or alone."""
    sizes = {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 12, "num_classes": 7}
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    linear = torch.nn.Linear(48, 5)
    model.head = torch.nn.Sequential(torch.nn.Dropout(), linear) if dropout else linear
    return model


def _jeonsworld() -> dict[str, torch.Tensor]:
    sizes = {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 12, "num_classes": 7}
    theirs = timm.create_model("vit_tiny_patch16_224", **sizes).state_dict()
    return vitconvert.convert_state_dict(theirs, to="jeonsworld", overrides={"num_heads": 12})


def _lucidrains() -> dict[str, torch.Tensor]:
    sizes = {"image_size": 32, "patch_size": 8, "num_classes": 7, "dim": 20, "depth": 2}
    return randomised(vit_pytorch.ViT(heads=16, dim_head=4, mlp_dim=50, **sizes)).state_dict()


def write_team(folder: Path) -> None:
    """A team's code, its table and what it trained."""
    (folder / "team").mkdir()
    shutil.copy(team.__file__, folder / "team" / "vit.py")
    sizes = "image_size=(32, 32), channels=3, width=24, heads=12, depth=2"
    code = f"from team.vit import TeamViT\n\ndef build():\n    return TeamViT({sizes})\n"
    (folder / "team" / "models.py").write_text(code)
    (folder / "team.toml").write_text(team.TABLE)
    torch.manual_seed(3)
    model = team.TeamViT(image_size=(32, 32), channels=3, width=24, heads=12, depth=2)
    torch.save(randomised(model).state_dict(), folder / "team.pth")


def fill(page: Path) -> None:
    """Write into a page what its commands print."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        write_models(Path(folder))
        page.write_text(filled(page, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    os.environ["NO_COLOR"] = "1"
    torch.set_num_threads(1)
    for page in [PAGES / name for name in sys.argv[1:]] or RUN:
        fill(page)
