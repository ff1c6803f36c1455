"""Text towers go along with their image towers: the real programs compute the same of both.

Every number is random, sizes are odd, and each project's own code reads what was written for it.
"""

import json
import re
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitconvert
from tests.packages import open_clip, timm
from tests.packages import transformers as t
from tests.sampling import sampled
from tests.small_models import (
    assert_same_tensors,
    randomise_calmly,
    relative,
    save_openclip,
    with_numbers,
)
from vitconvert.errors import SourceError
from vitconvert.programs.program import program_of
from vitconvert.tables import architectures
from vitconvert.tables.dialects import builtin_tables

TEXT = {"hidden_size": 36, "intermediate_size": 50, "num_hidden_layers": 11, "vocab_size": 71}
TEXT |= {"num_attention_heads": 3, "max_position_embeddings": 9, "bos_token_id": 1}
VISION = {"hidden_size": 30, "intermediate_size": 45, "num_hidden_layers": 2, "image_size": 24}
VISION |= {"num_attention_heads": 3, "patch_size": 8}
OPEN_VISION = {"image_size": 24, "layers": 2, "width": 64, "patch_size": 8}
OPEN_TEXT = {"context_length": 7, "vocab_size": 40, "width": 128, "heads": 2, "layers": 3}
NUMBERS = {"input_resolution": 24, "context_length": 7, "vocab_size": 40}
SIGLIP_TEXT = {"proj_bias": True, "pool_type": "last", "no_causal_mask": True}
SIGLIP_TEXT |= {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}}
IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
NAME = "vit_nano_patch8_siglip_24"


def randomised(model):
    torch.manual_seed(5)
    model = randomise_calmly(model)
    with torch.no_grad():  # numbers, which are in no layer
        for name, parameter in model.named_parameters():
            if name in ("logit_scale", "logit_bias"):
                parameter.fill_(0.7 if name == "logit_scale" else -3.1)
    return model.eval()


def saved(model, folder):
    randomised(model).save_pretrained(folder)
    return folder


def hf_clip(folder, text=(), **vision):
    text = TEXT | {"eos_token_id": 60, "hidden_act": "gelu"} | dict(text)
    vision = VISION | {"hidden_act": "gelu"} | vision
    config = t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=13)
    return saved(t.CLIPModel(config), folder)


def hf_siglip(folder):
    text = TEXT | {"projection_size": 30, "eos_token_id": 2}
    return saved(
        t.SiglipModel(
            t.SiglipConfig(text_config=text, vision_config=VISION | {"intermediate_size": 120})
        ),
        folder,
    )


def hf_siglip2(folder):
    text = TEXT | {"projection_size": 30, "eos_token_id": 2}
    vision = VISION | {"num_patches": 9}
    del vision["image_size"]
    return saved(t.Siglip2Model(t.Siglip2Config(text_config=text, vision_config=vision)), folder)


def openclip(folder, *, custom=False, text=(), vision=(), **more):
    config = {"embed_dim": 20, "vision_cfg": OPEN_VISION | dict(vision)}
    config |= {"text_cfg": OPEN_TEXT | dict(text), **more}
    model = randomised((open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config))
    return save_openclip(model, config | ({"custom_text": True} if custom else {}), folder)


def openai(folder):
    """A state dict as OpenAI's code reads it, with the numbers of a traced model."""
    config = {"embed_dim": 20, "vision_cfg": OPEN_VISION, "text_cfg": OPEN_TEXT}
    folder.mkdir()
    model = randomised(open_clip.CLIP(**config, quick_gelu=True))
    torch.save(with_numbers(model), folder / "model.pt")
    return folder


def traced_openai(folder):
    """As OpenAI publishes it: a TorchScript archive in half precision, that computes by itself."""
    config = {"embed_dim": 20, "vision_cfg": OPEN_VISION, "text_cfg": OPEN_TEXT}
    model = randomised(open_clip.CLIP(**config, quick_gelu=True))
    open_clip.convert_weights_to_fp16(model)
    mask = model._buffers.pop("attn_mask")
    model.attn_mask = mask  # a constant there, which open_clip's own traces keep as a tensor
    for name, number in NUMBERS.items():
        model.__dict__.pop(name, None)
        model.register_buffer(name, torch.tensor(number))
    inputs = {"encode_image": IMAGES.half(), "encode_text": ids(40, 7, 39)}
    folder.mkdir()
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        torch.jit.save(torch.jit.trace_module(model, inputs), folder / "model.pt")
    return folder


SOURCES = {
    "hf_clip": hf_clip,
    "hf_siglip": hf_siglip,
    "hf_siglip2": hf_siglip2,
    "openai_clip": openai,
    "openai_clip, traced": traced_openai,
    "openclip": openclip,
    "openclip, QuickGELU": lambda folder: openclip(folder, quick_gelu=True),
    "openclip, as SigLIP": lambda folder: openclip(
        folder, custom=True, text=SIGLIP_TEXT, init_logit_bias=-10
    ),
}


@pytest.fixture(scope="module")
def source_of(tmp_path_factory):
    """A directory of each kind, written once."""
    written = {}

    def source(kind):
        if kind not in written:
            written[kind] = SOURCES[kind](tmp_path_factory.mktemp("sources") / "source")
        return written[kind]

    return source


@pytest.fixture
def named_siglip(monkeypatch):
    """A small SigLIP tower among timm's models, since open_clip builds these by name alone."""
    rows = architectures.architectures()["timm"]
    row = rows.rows["vit_base_patch32_siglip_256"]
    small = {
        "image_size": [24, 24],
        "patch_size": [8, 8],
        "embed_dim": 30,
        "depth": 2,
        "num_heads": 3,
    }
    row = {field: small.get(field, value) for field, value in row.items()}
    monkeypatch.setitem(rows.rows, NAME, row)
    architectures.named.cache_clear()

    def build(pretrained=False, **arguments):
        sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 30, "depth": 2, "num_heads": 3}
        sizes |= {"class_token": False, "act_layer": "gelu_tanh"}
        taken = {n: v for n, v in arguments.items() if n in ("num_classes", "global_pool")}
        return timm.models.VisionTransformer(**sizes | taken)

    monkeypatch.setitem(timm.models._registry._model_entrypoints, NAME, build)
    yield
    architectures.named.cache_clear()


def ids(count, length, end=None):
    """Texts of noise that end with `end` at different places."""
    found = torch.randint(0, count - 1, (3, length), generator=torch.Generator().manual_seed(2))
    if end is not None:
        found[found == end] = 0
        found[torch.arange(3), torch.tensor([length - 1, 2, 4])] = end
    return found


@torch.no_grad()
def of_transformers(folder, texts):
    kind = getattr(t, json.loads((folder / "config.json").read_text())["architectures"][0])
    model, problems = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(problems.values())
    images = model.get_image_features(pixel_values=IMAGES).pooler_output
    return images, model.get_text_features(input_ids=texts).pooler_output, model


@torch.no_grad()
def of_open_clip(folder, texts):
    model = open_clip.create_model(f"local-dir:{folder}").eval()
    return model.encode_image(IMAGES), model.encode_text(texts), model


@torch.no_grad()
def of_openai(folder, texts):
    """By open_clip's loader, which rounds to half precision: the numbers are put in again."""
    file = folder / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it tries torch.jit first, which is deprecated
        model = open_clip.load_openai_model(str(file), precision="fp32", device="cpu").eval()
    tensors = {n: v for n, v in tensors_of(folder).items() if v.is_floating_point()}
    model.load_state_dict(tensors)
    return model.encode_image(IMAGES), model.encode_text(texts), model


COMPUTED = {"hf": of_transformers, "openclip": of_open_clip, "openai_clip": of_openai}


def tensors_of(folder):
    (file,) = (f for f in folder.iterdir() if f.suffix in (".pt", ".safetensors"))
    if file.suffix == ".safetensors":
        return load_file(file)
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        try:
            return dict(torch.jit.load(file).state_dict())
        except RuntimeError:
            return torch.load(file, weights_only=True)


def assert_same_bytes(one, other):
    assert_same_tensors(tensors_of(one), tensors_of(other))


PAIRS = [  # kind of source, its program, the target, ids, positions, what ends a text
    ("hf_clip", "hf", "openclip", (71, 9, 60)),
    ("openai_clip", "openai_clip", "hf", (40, 7, 39)),
    ("openai_clip", "openai_clip", "openclip", (40, 7, 39)),
    ("openai_clip, traced", "openai_clip", "hf", (40, 7, 39)),
    ("openai_clip, traced", "openai_clip", "openclip", (40, 7, 39)),
    ("openclip", "openclip", "hf", (40, 7, 39)),
    ("openclip, QuickGELU", "openclip", "openai_clip", (40, 7, 39)),
    ("hf_siglip", "hf", "openclip", (71, 9, None)),
]


@pytest.mark.parametrize(
    ("kind", "ours", "to", "texts"), sampled(PAIRS, 4, "slow"), ids=lambda value: str(value)
)
def test_both_towers_there_and_back(kind, ours, to, texts, source_of, named_siglip, tmp_path):
    source = source_of(kind)
    conversion = vitconvert.convert(source, to=to, output=tmp_path / "out")
    read = len(tensors_of(source))
    ledger = conversion.ledger
    assert ledger.read == read == len(ledger.used) + len(ledger.carried) + len(ledger.ignored)
    assert set(ledger.ignored) <= NUMBERS.keys()
    (verdict,) = (o for o in conversion.opened if o.consumer.endswith("texts"))
    assert verdict.relative < 2e-6
    wanted, found = COMPUTED[ours](source, ids(*texts)), COMPUTED[to](tmp_path / "out", ids(*texts))
    for theirs, written in zip(wanted[:2], found[:2], strict=True):
        assert relative(written, theirs) < 2e-5
    for name in ("logit_scale", "logit_bias"):
        one, other = (getattr(model, name, None) for *_, model in (wanted, found))
        assert (one is None) == (other is None) and (one is None or one.item() == other.item())
    vitconvert.convert(tmp_path / "out", to=ours, output=tmp_path / "back", verify=False)
    assert_same_bytes(source, tmp_path / "back")


@pytest.mark.parametrize("kind", sampled(SOURCES, 2))
def test_to_its_own_project(kind, source_of, tmp_path):
    source, out = source_of(kind), tmp_path / "out"
    checkpoint = vitconvert.load_checkpoint(source)
    dialect = checkpoint.dialect
    conversion = vitconvert.convert(source, to=dialect, output=out)
    texts = [o for o in conversion.opened if o.consumer.endswith("texts")]
    assert [o.bit_equal for o in texts] == [True]
    assert_same_bytes(source, out)
    again = vitconvert.load_checkpoint(out)
    assert again.text.config == checkpoint.text.config
    assert again.text.table is checkpoint.text.table
    assert again.config.function() == checkpoint.config.function()
    plan = vitconvert.plan_conversion(source, to=dialect)
    assert {p.assembly.target: p.info.shape for p in plan.tensors} == {
        name: tuple(tensor.shape) for name, tensor in tensors_of(out).items()
    }
    assert sorted(plan.files) == sorted(file.name for file in out.iterdir())


def test_a_plan_of_cast_towers_says_what_is_written(source_of, tmp_path):
    wish = {"to": "openai_clip", "dtype": torch.float16}
    source, out = source_of("openclip, QuickGELU"), tmp_path / "out"
    vitconvert.convert(source, **wish, output=out, verify=False)
    plan = vitconvert.plan_conversion(source, **wish)
    assert {p.assembly.target: (p.info.dtype, p.info.shape) for p in plan.tensors} == {
        name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors_of(out).items()
    }
    lossy = {p.assembly.target for p in plan.tensors if "lossy" in p.steps}
    assert {p.assembly.target for p in plan.tensors} - lossy == set(NUMBERS)


def test_images_are_computed_once(source_of, monkeypatch, tmp_path):
    kind, computed = type(program_of(builtin_tables()["hf_clip"])), []
    own = kind.open_both

    def counted(program, directory):
        towers = own(program, directory)
        return replace(towers, images=lambda images: computed.append(1) or towers.images(images))

    monkeypatch.setattr(kind, "open_both", counted)
    vitconvert.convert(source_of("hf_clip"), to="hf", output=tmp_path / "out")
    assert not computed  # AutoModel was asked already


def test_texts_that_cannot_end(tmp_path):
    """The default id of the end, of transformers' own config, is outside a small vocabulary."""
    source = hf_clip(tmp_path / "source", text={"eos_token_id": 49407})
    for to in ("hf", "openclip"):
        conversion = vitconvert.convert(source, to=to, output=tmp_path / to)
        [texts] = [o for o in conversion.opened if o.consumer.endswith("texts")]
        assert texts.relative < 1e-6


def test_what_a_file_says_of_texts_stays_in_it(tmp_path):
    source = openclip(tmp_path / "source", text={"tokenizer_kwargs": {"clean": "lower"}})
    vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    written = json.loads((tmp_path / "out/open_clip_config.json").read_text())
    assert written["model_cfg"]["text_cfg"]["tokenizer_kwargs"] == {"clean": "lower"}


def test_a_traced_models_mask_of_texts_is_computed(source_of, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(source_of("openclip"), source)
    tensors = load_file(source / "open_clip_model.safetensors")
    mask = open_clip.CLIP(20, OPEN_VISION, OPEN_TEXT).attn_mask
    save_file(tensors | {"attn_mask": mask}, source / "open_clip_model.safetensors")
    checkpoint = vitconvert.load_checkpoint(source)
    assert checkpoint.text and "attn_mask" in checkpoint.ledger.ignored
    vitconvert.convert(source, to="openclip", output=tmp_path / "out", verify=False)
    assert_same_bytes(source_of("openclip"), tmp_path / "out")


def test_in_half_precision(source_of, tmp_path):
    conversion = vitconvert.convert(
        source_of("openai_clip"), to="hf", output=tmp_path / "out", dtype=torch.float16
    )
    assert {tensor.dtype for tensor in tensors_of(tmp_path / "out").values()} == {torch.float16}
    assert conversion.opened[-1].relative < 2e-6
    plan = vitconvert.plan_conversion(source_of("openai_clip"), to="hf", dtype=torch.float16)
    assert {planned.info.dtype for planned in plan.tensors} == {"float16"}


def text_note(conversion):
    (note,) = (note for note in conversion.ledger.notes if "text encoder" in note)
    return note


def test_left_behind(source_of, tmp_path):
    def note(source, to="hf", **options):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        arguments = {"to": to, "output": tmp_path / "out", "verify": False} | options
        conversion = vitconvert.convert(source, **arguments)
        record = json.loads((tmp_path / "out/vitconvert.json").read_text())
        assert conversion.ledger.carried == () and record["text"] is None
        assert not any(name.startswith(("text", "logit")) for name in tensors_of(tmp_path / "out"))
        return text_note(conversion).removeprefix("the text encoder is left out: ")

    source = source_of("hf_clip")
    assert note(source, "timm") == (
        "timm VisionTransformer (plain, distilled, hybrid) has no place for one"
    )
    assert note(source, "openclip", image_only=True) == "as you asked"
    assert note(source, num_classes=0).startswith("what leads from images to the space of texts")
    assert "causal is always True there" in note(source_of("openclip, as SigLIP"))
    assert note(hf_clip(tmp_path / "two", text={"hidden_act": "quick_gelu"}), "openclip") == (
        "activation: the weights need gelu, and there it is quick_gelu"
    )
    strange = openclip(tmp_path / "strange", custom=True, text={"ls_init_value": 0.1})
    assert "does not explain text.transformer.resblocks.0.ls_1.gamma" in note(strange)
    (strange / "open_clip_config.json").unlink()
    stated = {"overrides": {"activation": "gelu", "head_dim": 64}}
    assert "does not explain" in note(strange, **stated)
    silent = openclip(tmp_path / "silent")
    (silent / "open_clip_config.json").unlink()
    assert note(silent, **stated) == (
        "without open_clip_config.json, there is no value for its num_heads, activation, "
        "norm_eps, causal, read_token"
    )


WRONG = {
    "a width": ({"width": 64}, "contradicted: embed_dim 64 in config.json, 128 by the tensors"),
    "heads": ({"heads": 5}, "its width, 128, is not divided by its heads"),
    "an eps": ({"norm_kwargs": {"eps": float("nan")}}, "its norm_eps is nan"),
    "another model": ({"hf_model_name": "x"}, "its configuration says hf_model_name"),
    "no projection": ({"proj_type": "none"}, "model_cfg.text_cfg.proj_type = none"),
    "a pooling": ({"pool_type": "first"}, "pool_type = 'first', which vitconvert has no word for"),
}


@pytest.mark.parametrize(("said", "why"), WRONG.values(), ids=WRONG)
def test_what_contradicts_is_not_carried(said, why, source_of, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(source_of("openclip"), source)
    file = source / "open_clip_config.json"
    config = json.loads(file.read_text())
    config["model_cfg"]["text_cfg"] |= said
    file.write_text(json.dumps(config))
    checkpoint = vitconvert.load_checkpoint(source)
    assert checkpoint.text is None and why in checkpoint.text_problem


def test_a_tokenizer_goes_along(tmp_path):
    """And open_clip reads texts with it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source = hf_clip(tmp_path / "source")
    words = {"[UNK]": 0, "a": 1, "photograph": 2, "of": 3, "snow": 4, "[END]": 60}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = t.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[END]"
    )
    fast.save_pretrained(source)
    out = tmp_path / "out"
    vitconvert.convert(source, to="openclip", output=out, verify=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    read = open_clip.get_tokenizer(f"local-dir:{out}")(["a photograph of snow"])
    assert read.tolist() == [[1, 2, 3, 4, 60, 60, 60, 60, 60]]
    vitconvert.convert(source, to="openclip", output=out, verify=False, overwrite=True)
    vitconvert.convert(
        source, to="openclip", output=tmp_path / "image", image_only=True, verify=False
    )
    assert not (tmp_path / "image/tokenizer.json").exists()
    (source / "vocab.json").symlink_to(tmp_path / "out/open_clip_config.json")
    with pytest.raises(SourceError, match="a link that leads out of its folder"):
        vitconvert.convert(source, to="openclip", output=tmp_path / "link", verify=False)
    assert not (tmp_path / "link").exists()


def test_the_command_line(source_of, tmp_path, run):
    source, out = source_of("hf_clip"), tmp_path / "out"
    seen = run("inspect", source, "-v").out
    assert "text encoder   11 blocks of width 36, 3 heads, 71 ids" in seen
    arguments = ("hf", source, "--to", "openclip", "-o", out)
    told = run(*arguments, "--dry-run").out
    assert "the text encoder is converted too, but not computed by vitconvert: 11 blocks" in told
    done = run(*arguments, "--image-only", "--no-verify")
    assert done.code == 0, done.err
    assert "the text encoder is left out: as you asked" in (out / "README.md").read_text()


@pytest.mark.parametrize("kind", ["hf_clip", "openclip"])
def test_examples_of_a_card_run(kind, source_of, tmp_path, monkeypatch):
    vitconvert.convert(source_of(kind), to=kind, output=tmp_path / "out", verify=False)
    monkeypatch.chdir(tmp_path / "out")
    Image.new("RGB", (30, 40)).save("photo.jpg")
    code = re.search(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)[1]
    scope = {}
    with torch.no_grad():
        exec(compile(code, "README.md", "exec"), scope)
    assert scope["texts"].shape == (1, scope["output"].shape[1])
