"""`vitconvert audit --python`: another interpreter, and other releases of transformers."""

import os
import re
import sys
from pathlib import Path

import pytest

from benchmarks.upstream import install
from tests.auditing.models import drawn, llama


@pytest.mark.slow
def test_another_interpreter(audit, tmp_path, monkeypatch):
    """Tied weights, what is on the meta device, and a user's function come back the same."""
    drawn(llama(tied=True)).save_pretrained("llama")
    for by in ("transformers", "ours:load", "ours:meta"):
        Path("ours.py").write_text("""
import torch, transformers

def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)

def meta(path):
    model = load(path)
    model.lm_head = torch.nn.Linear(24, 97, bias=False, device="meta")
    return (model,)
""")
        here = audit("llama", "--by", by)
        code, printed = audit("llama", "--by", by, "--python", sys.executable)
        assert f" of {sys.executable}\n" in printed
        assert here == (code, printed.replace(f" of {sys.executable}", ""))
        assert here[0] == (3 if by == "ours:meta" else 0)
        assert ("on the meta device" in here[1]) == (by == "ours:meta")


@pytest.fixture(scope="session")
def releases(tmp_path_factory):
    """Folders with releases of transformers and what they require, made once."""
    made = {}

    def folder(release):
        if release not in made:
            made[release] = tmp_path_factory.mktemp("release")
            install(f"transformers=={release}", made[release])
        return made[release]

    return folder


SAVE_VIDEOMAE = """
import torch, transformers
sizes = dict(image_size=32, patch_size=8, num_frames=4, tubelet_size=2, hidden_size=48)
sizes |= dict(num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, num_labels=5)
model = transformers.VideoMAEForVideoClassification(transformers.VideoMAEConfig(**sizes))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_()
model.save_pretrained("videomae")
"""


@pytest.mark.slow
def test_videomae_of_transformers_4_loses_biases_in_5(audit, releases, monkeypatch):
    """transformers 48675; whole in 4.57.1 and in the release that is installed."""

    def by_release(release):
        folder = releases(release)
        monkeypatch.setenv("PYTHONPATH", os.fspath(folder))
        return "--python", sys.executable

    by_release("4.57.1")
    Path("save.py").write_text(SAVE_VIDEOMAE)
    assert os.system(f"{sys.executable} save.py") == 0  # noqa: S605
    code, printed = audit("videomae", "--by", "transformers", *by_release("4.57.1"))
    assert code == 0 and "51 of 51" in printed and "by transformers 4.57.1" in printed
    code, printed = audit("videomae", "--by", "transformers", *by_release("5.10.1"))
    assert code == 3 and "45 of 54 parameters" in printed and "transformers 5.10.1" in printed
    attention = "videomae.encoder.layer.{0..2}.attention.attention"
    assert f"  {attention}.query.bias: the file has {attention}.q_bias" in printed.splitlines()
    assert f"  {attention}.value.bias: the file has {attention}.v_bias" in printed.splitlines()
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\$ vitconvert audit videomae .*\n((?:.+\n)+?)```", readme, re.M)
    assert printed.replace(f" of {sys.executable}", "").startswith(shown)
    code, printed = audit("videomae", "--by", "transformers")
    assert code == 0, printed


SAVE_VERDICTS = """
import torch, transformers

def saved(model, name):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(name)

sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
stages = dict(hidden_sizes=[8, 16, 20, 24], num_attention_heads=[1, 2, 2, 3], num_labels=5)
config = transformers.SegformerConfig(**stages, depths=[1, 2, 1, 1], decoder_hidden_size=20)
saved(transformers.SegformerForSemanticSegmentation(config), "segformer")
text = transformers.ChineseCLIPTextConfig(**sizes, vocab_size=97)
vision = transformers.ChineseCLIPVisionConfig(**sizes, image_size=32, patch_size=8)
config = dict(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=12)
saved(transformers.ChineseCLIPModel(transformers.ChineseCLIPConfig(**config)), "chinese_clip")
text = dict(sizes, num_key_value_heads=1, head_dim=8, vocab_size=97, num_experts=4)
text |= dict(num_experts_per_tok=2, moe_intermediate_size=12, pad_token_id=None)
vision = dict(depth=2, hidden_size=24, num_heads=3, intermediate_size=40, out_hidden_size=24)
vision |= dict(num_position_embeddings=16, deepstack_visual_indexes=[0], patch_size=4)
config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision)
saved(transformers.Qwen3VLMoeForConditionalGeneration(config), "qwen")
"""


@pytest.mark.coverage
def test_files_of_other_releases(audit, releases, monkeypatch):
    """Norms 1 and 2 that become `before` and `after`, a padding row set to zero, experts."""

    def by_release(release):
        monkeypatch.setenv("PYTHONPATH", os.fspath(releases(release)))
        return "--python", sys.executable

    here = by_release("5.0.0")
    Path("save.py").write_text(SAVE_VERDICTS)
    assert os.system(f"{sys.executable} save.py") == 0  # noqa: S605
    for model in ("segformer", "qwen"):
        code, printed = audit(model, "--by", "transformers", *here)
        assert code == 0, printed
    code, printed = audit("segformer", "--by", "transformers")
    assert code == 0, printed
    code, printed = audit("chinese_clip", "--by", "transformers")
    assert code == 3 and "some numbers were replaced by one, and the file has others: 1" in printed
    words = "text_model.embeddings.word_embeddings.weight"
    assert f"  {words}: 24 numbers were replaced by 0, in row 0 of 97, of {words}" in printed
    assert f"--allow '{words}'" in printed
    assert audit("chinese_clip", "--by", "transformers", "--allow", words)[0] == 0
