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
LORA, IA3, LOHA, LOKR, LN_TUNING = "LORA", "IA3", "LOHA", "LOKR", "LN_TUNING"
MERGED = {LORA: "LoRA", IA3: "IA3", LOHA: "LoHa", LOKR: "LoKr", LN_TUNING: "LN tuning"}
"""The types of PEFT that are merged here, and what they are called."""
# Patterns are regular expressions, by which somebody else's file could keep us busy for ever:
# groups that repeat, and many repetitions, are no names of modules.
_HARMLESS = re.compile(r"(?:[\w.^$|()\[\]-]|\\[.dw])(?:[\w.^$|()\[\]-]|\\[.dw]|(?<!\))[*+?])*")
_MOST_REPEATS = 3
_MOST_PATTERNS = 1000


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """The facts that decide how an adapter is merged.

    Attributes:
        kind: PEFT's type, one of `MERGED`.
        rank: Of the low-rank matrices; None: the tensors show it.
        alpha: The scale is alpha / rank.
        rslora: It is alpha / sqrt(rank).
        dora: Each output's row has a length of its own.
        rank_pattern, alpha_pattern: Modules with others, by the end of their name.
        modules_to_save: Modules that were trained as a whole.
        base: The model that the adapter was trained for, as its author names it.
        revision: Of that model's repository; None: any.
        scale: The scale itself, where the user states it.
        feedforward: Modules whose inputs IA3 multiplies, by the end of their name, or a pattern.
        library: The package whose class was adapted; None: not stated.
    """

    kind: str = LORA
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
    feedforward: tuple[str, ...] | str = ()
    library: str | None = None

    def rank_of(self, module: str) -> int:
        """The rank that is stated of a module, where its tensors need not show it."""
        return int(self._of_module(self.rank_pattern, module) or self.rank or 1)

    def is_feedforward(self, module: str) -> bool:
        """Whether IA3 multiplies the inputs of a module, as PEFT decides it by its name."""
        if isinstance(self.feedforward, str):
            return re.fullmatch(self.feedforward, module) is not None
        return module.endswith(self.feedforward)

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
        NotRepresentable: It is of a method that is not merged here, or of a variant of LoRA that
            is not.
        ConflictingFact: A field is not what it should be.
    """
    _check_fields(content, ("peft_type",), file)
    kind = str(content.get("peft_type") or "none").upper()
    if kind not in MERGED:
        raise NotRepresentable(
            f"An adapter of the type {content.get('peft_type') or 'none'} is not merged here.",
            evidence={
                "file": file,
                "merged are": f"{', '.join(MERGED)}; LORA also as DoRA, rsLoRA",
            },
            hint=_MERGE_THERE,
        )
    _check_fields(content, _FIELDS_OF[kind], file)
    if kind == LORA:
        _check_variant(content, file)
    saved, inputs = (content.get(n) or () for n in ("modules_to_save", "feedforward_modules"))
    adapted = content.get("auto_mapping")  # left out where the adapter is for a task
    module = adapted.get("parent_library") if isinstance(adapted, dict) else None
    return AdapterConfig(
        kind=kind,
        rank=content.get("r"),
        alpha=content.get("lora_alpha" if kind == LORA else "alpha", 1.0),
        rslora=bool(content.get("use_rslora")),
        dora=bool(content.get("use_dora")),
        rank_pattern=content.get("rank_pattern") or {},
        alpha_pattern=content.get("alpha_pattern") or {},
        modules_to_save=(saved,) if isinstance(saved, str) else tuple(saved),
        base=content.get("base_model_name_or_path"),
        revision=content.get("revision"),
        feedforward=inputs if isinstance(inputs, str) else tuple(inputs),
        library=module.partition(".")[0] if isinstance(module, str) else None,
    )


def _check_variant(content: JsonObject, file: str) -> None:
    """Refuse variants of LoRA that are not merged here.

    Raises:
        NotRepresentable: It is one.
    """
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


def _are_harmless(value: object) -> bool:
    return _is_harmless(value) if isinstance(value, str) else _are_texts(value)


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
    "alpha": (_is_number, "a number"),
    "feedforward_modules": (_are_harmless, "a list of texts, or a simple pattern"),
}
_OF_ALL = ("peft_type", "modules_to_save", "base_model_name_or_path", "revision")
_OF_RANKS = ("r", "rank_pattern", "alpha_pattern")
_FIELDS_OF: Mapping[str, tuple[str, ...]] = {
    LORA: (*_OF_ALL, *_OF_RANKS, "lora_alpha", "use_rslora", "use_dora", "fan_in_fan_out"),
    IA3: (*_OF_ALL, "feedforward_modules"),
    LOHA: (*_OF_ALL, *_OF_RANKS, "alpha"),
    LOKR: (*_OF_ALL, *_OF_RANKS, "alpha"),
    LN_TUNING: _OF_ALL,
}
