"""The architecture of the text encoder beside a vision encoder: carried, not computed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vitconvert.config.axis_sizes import FIXED_AXES
from vitconvert.config.vocabularies import ACTIVATIONS

READ_TOKENS = (
    "highest",  # the one of the highest id: OpenAI's end of a text has the last id of all
    "end",  # the first of `end_id`
    "last",  # the one at the last position, whatever it is: SigLIP
)


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A CLIP's or SigLIP's text encoder: blocks with norms before them, on learned positions.

    What decides its function besides the weights, and what stands beside them. Two encoders of
    equal `function()` compute the same of the same weights and ids.

    Attributes:
        vocab_size: Ids that have an embedding.
        context_length: Positions.
        embed_dim, depth, num_heads, head_dim, mlp_dim: As of a ViT.
        num_features: Numbers of the space that images and texts share.
        activation: Of the MLPs.
        norm_eps: Of every norm, or of all but the last.
        causal: Whether a token sees only those before it.
        read_token: Whose output is projected: one of `READ_TOKENS`.
        final_norm_eps: Of the last norm; 0 is that of the others.
        end_id: The id of what ends a text, where that one is read.
        head_bias: Whether the projection has a bias.
        logit_bias: Whether a bias is added to the similarities, as SigLIP's loss does.
        tokenizer: What open_clip calls the tokenizer; "" is its own, OpenAI's.
    """

    vocab_size: int
    context_length: int
    embed_dim: int
    depth: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_features: int
    activation: str
    norm_eps: float
    causal: bool
    read_token: str
    final_norm_eps: float = 0.0
    end_id: int = 0
    head_bias: bool = False
    logit_bias: bool = False
    tokenizer: str = ""

    vocabularies: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "activation": ACTIVATIONS,
        "read_token": READ_TOKENS,
    }

    def __str__(self) -> str:
        return (
            f"{self.depth} blocks of width {self.embed_dim}, {self.num_heads} heads, "
            f"{self.vocab_size} ids, {self.context_length} positions, to {self.num_features} "
            f"features; {self.activation}, {'causal' if self.causal else 'not causal'}, "
            f"reads the {self.read_token} token"
        )

    @property
    def ends_highest(self) -> bool:
        """Whether the token that is read has the highest id, in every text that has an end."""
        of_all = self.read_token == "end" and self.end_id == self.vocab_size - 1
        return self.read_token == "highest" or of_all

    def function(self) -> dict[str, Any]:
        """What decides the function; an end of the highest id of all is the highest of a text."""
        fields = {name: value for name, value in vars(self).items() if name != "tokenizer"}
        fields["final_norm_eps"] = self.final_norm_eps or self.norm_eps
        if self.ends_highest:
            fields["read_token"] = "highest"
        if fields["read_token"] != "end":
            del fields["end_id"]
        return fields

    def axes(self) -> dict[str, int]:
        """The size of every axis that `[text]` of `weights_map/canonical.toml` names."""
        return {
            **FIXED_AXES,
            "vocabulary": self.vocab_size,
            "position": self.context_length,
            "width": self.embed_dim,
            "head": self.num_heads,
            "dim": self.head_dim,
            "hidden": self.mlp_dim,
            "feature": self.num_features,
        }
