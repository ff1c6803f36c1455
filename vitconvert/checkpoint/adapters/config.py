"""`adapter_config.json` of PEFT: by how much an adapter changes each module."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import NoneType

from vitconvert.documents import JsonObject
from vitconvert.errors import ConflictingFact, NotRepresentable

# What these initialise differently leaves the base as it is (PEFT 0.21, tuners/lora/config.py).
# The others, such as "pissa", take a part out of the base's weights first.
_LEAVE_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
# Variants that compute something else from the same tensors, and are not merged.
_OTHER_FUNCTIONS = (
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication"),
    *("monteclora_config", "target_parameters", "trainable_token_indices", "use_bdlora"),
    *("use_qalora", "velora_config"),
)
_MERGE_THERE = (
    "merge it with PEFT (merge_and_unload, save_pretrained), and convert what that wrote."
)
# Patterns are regular expressions, by which somebody else's file could keep us busy for ever:
# groups that repeat, and many repetitions, are no names of modules.
_HARMLESS = re.compile(r"(?:[\w.^$|()\[\]-]|\\[.dw])(?:[\w.^$|()\[\]-]|\\[.dw]|(?<!\))[*+?])*")
_MOST_REPEATS = 3
_MOST_PATTERNS = 1000


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """The facts that decide how a LoRA or DoRA adapter is merged.

    Attributes:
        rank: Of the low-rank matrices; None: the tensors show it.
        alpha: The scale is alpha / rank.
        rslora: It is alpha / sqrt(rank).
        dora: Each output's row has a length of its own.
        rank_pattern, alpha_pattern: Modules with others, by the end of their name.
        modules_to_save: Modules that were trained as a whole.
        base: The model that the adapter was trained for, as its author names it.
        revision: Of that model's repository; None: any.
        scale: The scale itself, where the user states it.
    """

    rank: int | None = None
    alpha: float = 1.0
    rslora: bool = False
    dora: bool | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    modules_to_save: tuple[str, ...] = ()
    base: str | None = None
    revision: str | None = None
    scale: float | None = None

    def scale_of(self, module: str, rank: int) -> float:
        """The factor of the product of a module's two matrices.

        Raises:
            ConflictingFact: The tensors have another rank than the configuration says.
        """
        if self.scale is not None:
            return self.scale
        stated = self._of_module(self.rank_pattern, module) or self.rank
        if stated != rank:
            raise ConflictingFact(
                "An adapter's tensors have another rank than its adapter_config.json says.",
                evidence={"module": module, "tensors": rank, "adapter_config.json": stated},
                hint="the two are of different adapters; get both again.",
            )
        alpha = self._of_module(self.alpha_pattern, module)
        alpha = self.alpha if alpha is None else alpha
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def _of_module(self, patterns: Mapping[str, float], module: str) -> float | None:
        """The value of the first pattern that a module's name ends with, as PEFT finds it."""
        return next((v for k, v in patterns.items() if _compiled(k).match(module)), None)


@functools.lru_cache(maxsize=_MOST_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})$")


def parse_adapter_config(content: JsonObject, file: str) -> AdapterConfig:
    """Read what PEFT writes.

    Raises:
        NotRepresentable: It is of another method than LoRA and DoRA, or of a variant of them that
            is not merged here.
        ConflictingFact: A field is not what it should be.
    """
    _check_fields(content, ("peft_type",), file)
    kind = content.get("peft_type") or "none"
    if kind.upper() != "LORA":
        raise NotRepresentable(
            f"An adapter of the type {kind} is not merged here.",
            evidence={"file": file, "merged are": "LORA, with DoRA and rsLoRA"},
            hint=_MERGE_THERE,
        )
    if other := next((name for name in _OTHER_FUNCTIONS if content.get(name)), None):
        raise NotRepresentable(
            f"A LoRA adapter with {other} is not merged here.",
            evidence={"file": file, other: repr(content[other])[:80]},
            hint=_MERGE_THERE,
        )
    start = content.get("init_lora_weights")
    if not any(start is known or start == known for known in _LEAVE_THE_BASE):
        raise NotRepresentable(
            f"This adapter began with init_lora_weights = {str(start)[:40]!r}.",
            evidence={"file": file},
            meaning="PEFT changes the weights of the base then, so the adapter is not one for the "
            "base as it was published.",
            hint="save_pretrained(path_initial_model_for_weight_conversion=...) of PEFT makes it "
            "one; or " + _MERGE_THERE,
        )
    _check_fields(content, _FIELDS, file)
    saved = content.get("modules_to_save") or ()
    return AdapterConfig(
        rank=content["r"],
        alpha=content["lora_alpha"],
        rslora=bool(content.get("use_rslora")),
        dora=bool(content.get("use_dora")),
        rank_pattern=content.get("rank_pattern") or {},
        alpha_pattern=content.get("alpha_pattern") or {},
        modules_to_save=(saved,) if isinstance(saved, str) else tuple(saved),
        base=content.get("base_model_name_or_path"),
        revision=content.get("revision"),
    )


def _check_fields(content: Mapping[str, object], names: Iterable[str], file: str) -> None:
    for name in names:
        fits, expected = _FIELDS[name]
        if not fits(content.get(name)):
            raise ConflictingFact(
                f"{name} in adapter_config.json is not {expected}.",
                evidence={"file": file, "found": repr(content.get(name))[:80]},
                hint="get the adapter again, or correct the file.",
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_flag(value: object) -> bool:
    return type(value) in (bool, NoneType)


def _is_text(value: object) -> bool:
    return type(value) in (str, NoneType)


def _are_texts(value: object) -> bool:
    several = value if isinstance(value, list) else [value]
    return not value or all(isinstance(one, str) for one in several)


def _of_modules(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Whether keys are harmless patterns of modules, and all values fit."""

    def check(value: object) -> bool:
        if not isinstance(value, dict):
            return not value
        few = len(value) <= _MOST_PATTERNS
        return few and all(map(fits, value.values())) and all(map(_is_harmless, value))

    return check


def _is_harmless(pattern: str) -> bool:
    if not _HARMLESS.fullmatch(pattern) or sum(map(pattern.count, "*+?")) > _MOST_REPEATS:
        return False
    try:
        _compiled(pattern)
    except re.error:
        return False
    return True


_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "peft_type": (_is_text, "a text"),
    "fan_in_fan_out": (_is_flag, "true or false"),  # without effect: PEFT sets it aside
    "r": (_is_count, "a whole number above 0"),
    "lora_alpha": (_is_number, "a number"),
    "use_rslora": (_is_flag, "true or false"),
    "use_dora": (_is_flag, "true or false"),
    "rank_pattern": (_of_modules(_is_count), "an object of names of modules and ranks"),
    "alpha_pattern": (_of_modules(_is_number), "an object of names of modules and numbers"),
    "modules_to_save": (_are_texts, "a list of texts"),
    "base_model_name_or_path": (_is_text, "a text"),
    "revision": (_is_text, "a text"),
}
