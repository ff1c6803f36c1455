"""What the tensors of an adapter are, from their names: PEFT's, loralib's and mmengine's.

    module.lora_A.weight, module.lora_B.weight          PEFT; in memory with the adapter's name
    module.lora_A, module.lora_B                        loralib
    module.lora_down.weight, module.lora_up.weight      mmengine
    module.lora_embedding_A, module.lora_embedding_B    PEFT, of a table of embeddings
    module.lora_magnitude_vector                        PEFT, DoRA: the length of each output's row
    module.modules_to_save.NAME.weight                  a whole module in place of another's
    module.base_layer.weight, module.original_layer.weight, module.original_module.weight
                                                        what they are for, in a file that has both

PEFT 0.21 (utils/save_and_load.py), mmpretrain 1.2 (models/peft/lora.py), loralib 0.1.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_ROLES = {
    "lora_A": "down",
    "lora_B": "up",
    "lora_down": "down",
    "lora_up": "up",
    "lora_embedding_A": "embedding_down",
    "lora_embedding_B": "embedding_up",
    "lora_magnitude_vector": "magnitude",
}
_ROLE = re.compile(
    rf"(?P<module>.+?)\.(?P<role>{'|'.join(_ROLES)})(?:\.(?P<adapter>[^.]+))??"
    r"(?:\.(?P<kind>weight|bias))?"
)
_OUTERMOST = "base_model.model."
_WRAPPED = re.compile(r"\.(?:base_layer|original_layer)(?=\.)")
_SAVED = re.compile(r"\.modules_to_save\.(?:(?P<adapter>[^.]+)\.(?=.))?")
_REPLACED = ".original_module."
WEIGHTS = ("weight", "in_proj_weight")
"""What a layer calls its matrix; torch's MultiheadAttention has one for q, k and v."""


@dataclass(frozen=True, kw_only=True)
class AdapterNames:
    """The tensors of a file that holds an adapter, or a model with one that is not merged.

    Attributes:
        low_rank: Module -> role ("down", "up", "up.bias", "magnitude", ...) -> name in the file.
        saved: Plain name -> name in the file, of modules that stand in place of the model's.
        rest: Plain name -> name in the file, of all others.
        replaced: Plain name -> name in the file, of those that the saved ones stand in place of.
        adapters: What the file calls its adapters.
        inside: Modules inside another one with low-rank matrices: out_proj of MultiheadAttention.
    """

    low_rank: Mapping[str, Mapping[str, str]]
    saved: Mapping[str, str]
    rest: Mapping[str, str]
    replaced: Mapping[str, str]
    adapters: frozenset[str]
    inside: frozenset[str]

    @property
    def has_base(self) -> bool:
        """Whether the file holds the layers too that its low-rank matrices are for."""
        weights = (f"{module}.{name}" for module in self.low_rank for name in WEIGHTS)
        layers = {name.rpartition(".")[0] for name in weights if name in self.rest}
        return bool(self.low_rank) and layers == self.low_rank.keys()


def read_names(names: Iterable[str]) -> AdapterNames:
    """Sort the tensors of a file by what their names say."""
    low_rank: dict[str, dict[str, str]] = defaultdict(dict)
    saved: dict[str, str] = {}
    rest: dict[str, str] = {}
    replaced: dict[str, str] = {}
    adapters, inside = set(), set()
    for name in names:
        plain = name.removeprefix(_OUTERMOST)
        if match := _ROLE.fullmatch(plain):
            bias = ".bias" if match["kind"] == "bias" else ""
            module = _WRAPPED.sub("", match["module"])
            inside |= {module} - {match["module"]}
            low_rank[module][_ROLES[match["role"]] + bias] = name
            adapters.add(match["adapter"])
        elif match := _SAVED.search(plain):
            saved[_SAVED.sub(".", plain)] = name
            adapters.add(match["adapter"])
        elif _REPLACED in plain:
            replaced[plain.replace(_REPLACED, ".")] = name
        else:
            rest[_WRAPPED.sub("", plain)] = name
    return AdapterNames(
        low_rank=low_rank,
        saved=saved,
        rest=rest,
        replaced=replaced,
        adapters=frozenset(adapters - {None}),
        inside=frozenset(inside),
    )
