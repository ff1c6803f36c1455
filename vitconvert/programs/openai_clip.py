"""OpenAI's CLIP: a repository of scripts, whose vision encoders open_clip computes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitconvert.checkpoint import Checkpoint
from vitconvert.programs.example import Example, blank_text, zeros
from vitconvert.programs.isolation import silent
from vitconvert.programs.open_clip import PROGRAM as OPEN_CLIP
from vitconvert.programs.open_clip import both_towers, open_clip_module, text_tower
from vitconvert.programs.program import BothTowers, Program
from vitconvert.programs.reference import Reference
from vitconvert.programs.target import Target
from vitconvert.settings import without_warnings

if TYPE_CHECKING:
    from torch import Tensor


class OpenAIClip(Program):
    """A project of scripts with a reference."""

    packages = ("open_clip",)

    def reference(self, checkpoint: Checkpoint) -> Reference:
        """open_clip's own encoder."""
        return OPEN_CLIP.reference(checkpoint)

    def open_both(self, directory: Path) -> BothTowers:
        """With open_clip's loader of OpenAI's state dicts.

        It rounds the weights to half precision, which OpenAI's have: the others are loaded again.
        """
        import torch

        open_clip, file = open_clip_module(), directory / "model.pt"
        with silent("root"), without_warnings():  # it tries torch.jit first, which warns
            model = open_clip.load_openai_model(str(file), precision="fp32", device="cpu").eval()
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        exact = {name: t.float() for name, t in tensors.items() if t.is_floating_point()}
        model.load_state_dict(exact, strict=True)
        return both_towers(open_clip, model)

    def texts(self, checkpoint: Checkpoint) -> "Callable[[Tensor], Tensor]":
        """By the sizes of its tensors, as open_clip builds it."""
        text = checkpoint.text
        assert text is not None
        shapes = text.recognised.binding.shapes
        length, width = shapes["positional_embedding"]
        text_cfg = {
            "context_length": length,
            "vocab_size": shapes["token_embedding.weight"][0],
            "width": width,
            "heads": width // 64,  # as OpenAI's loader has it: CLIP, model.py, build_model
            "layers": sum(name.endswith("ln_1.weight") for name in shapes),
        }
        features = shapes["text_projection"][1]
        return text_tower(text, {"embed_dim": features, "text_cfg": text_cfg, "quick_gelu": True})

    def examples(self, target: Target, source: Checkpoint, has_processor: bool) -> list[Example]:
        """With the project's own loader, of a model of both encoders."""
        if not target.text:
            return super().examples(target, source, has_processor)
        code = (
            'import clip\nimport torch\n\nmodel, preprocess = clip.load("model.pt", device="cpu")\n'
            f"output = model.encode_image({zeros(source.config)})\n"
            f"texts = model.encode_text({blank_text(target)})  # ids of clip.tokenize"
        )
        return [Example(title="With openai/CLIP", code=code)]


PROGRAM = OpenAIClip()
