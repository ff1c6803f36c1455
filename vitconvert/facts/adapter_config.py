"""`adapter_config.json`: by how much an adapter changes each module."""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
_MOST_STEPS = 3 * 10**8  # of all patterns over all names; some seconds


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """What decides how a LoRA or DoRA adapter is merged.

    Attributes:
        rank: Of the low-rank matrices; None: nobody said, and the tensors show it.
        alpha: The scale is alpha / rank.
        rslora: It is alpha / sqrt(rank).
        dora: Each output's row has a length of its own.
        rank_pattern, alpha_pattern: Modules with others, by the end of their name.
        modules_to_save: Modules that were trained as a whole.
        base: The model that the adapter was trained for, as its author names it.
        revision: Of that model's repository; None: any.
        scale: The scale itself, where the user stated it.
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
    _spent: list[float] = field(default_factory=lambda: [0.0], compare=False, repr=False)

    def scale_of(self, module: str, rank: int) -> float:
        """What the product of a module's two matrices is multiplied with.

        Raises:
            ConflictingFact: The tensors have another rank than the configuration says, or its
                patterns would keep us busy for too long.
        """
        if self.scale is not None:
            return self.scale
        said = self._of_module(self.rank_pattern, module) or self.rank
        if said != rank:
            raise ConflictingFact(
                "An adapter's tensors have another rank than its adapter_config.json says.",
                evidence={"module": module, "tensors": rank, "adapter_config.json": said},
                hint="the two are of different adapters; get both again.",
            )
        alpha = self._of_module(self.alpha_pattern, module)
        alpha = self.alpha if alpha is None else alpha
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def _of_module(self, patterns: Mapping[str, float], module: str) -> float | None:
        """The value of the first pattern that a module's name ends with, as PEFT finds it."""
        self._spent[0] += sum(_most_steps(pattern, module) for pattern in patterns)
        if self._spent[0] > _MOST_STEPS:
            raise ConflictingFact(
                "The patterns of adapter_config.json are too many, or repeat too much, for the "
                "names of the adapter's tensors.",
                evidence={"module": module[:80], "patterns": len(patterns)},
                hint=_MERGE_THERE,
            )
        return next((v for k, v in patterns.items() if _compiled(k).match(module)), None)


def _most_steps(pattern: str, module: str) -> float:
    """How often at most a part of a name is compared with a part of a pattern."""
    repeats = sum(map(pattern.count, "*+?"))
    places = (1.0 + len(module)) ** repeats / math.factorial(repeats)
    return float((1 + module.count(".")) * places)


@functools.lru_cache(maxsize=_MOST_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*\.)?({pattern})$")


def parse_adapter_config(content: Mapping[str, Any], file: str) -> AdapterConfig:
    """Read what PEFT writes.

    Raises:
        NotRepresentable: It is of another method than LoRA and DoRA, or of a variant of them that
            is not merged here.
        ConflictingFact: A field is not what it should be.
    """
    reader = _Fields(content, file)
    _check_method(reader)
    # Read, but without effect: PEFT sets it aside for nn.Linear.
    reader.flag("fan_in_fan_out")
    return AdapterConfig(
        rank=reader.number("r", int),
        alpha=reader.number("lora_alpha", float),
        rslora=reader.flag("use_rslora"),
        dora=reader.flag("use_dora"),
        rank_pattern=reader.pattern("rank_pattern", int),
        alpha_pattern=reader.pattern("alpha_pattern", float),
        modules_to_save=reader.texts("modules_to_save"),
        base=reader.text("base_model_name_or_path"),
        revision=reader.text("revision"),
    )


def _check_method(reader: "_Fields") -> None:
    kind = reader.text("peft_type") or "none"
    if kind.upper() != "LORA":
        raise NotRepresentable(
            f"An adapter of the type {kind} is not merged here.",
            evidence={"file": reader.file, "merged are": "LORA, with DoRA and rsLoRA"},
            hint=_MERGE_THERE,
        )
    for name in _OTHER_FUNCTIONS:
        if reader.content.get(name):
            raise NotRepresentable(
                f"A LoRA adapter with {name} is not merged here.",
                evidence={"file": reader.file, name: repr(reader.content[name])[:80]},
                hint=_MERGE_THERE,
            )
    start = reader.content.get("init_lora_weights")
    if not any(start is known or start == known for known in _LEAVE_THE_BASE):
        raise NotRepresentable(
            f"This adapter began with init_lora_weights = {str(start)[:40]!r}.",
            evidence={"file": reader.file},
            meaning="PEFT changes the weights of the base then, so the adapter is not one for the "
            "base as it was published.",
            hint="save_pretrained(path_initial_model_for_weight_conversion=...) of PEFT makes it "
            "one; or " + _MERGE_THERE,
        )


@dataclass(frozen=True)
class _Fields:
    """The fields of a file that others wrote, each checked."""

    content: Mapping[str, Any]
    file: str

    def number(self, name: str, kind: type) -> Any:
        value = self.content.get(name)
        if not _is_number(value, kind):
            raise self._wrong(name, "a whole number above 0" if kind is int else "a number")
        return value

    def flag(self, name: str) -> bool:
        value = self.content.get(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return bool(value)

    def text(self, name: str) -> str | None:
        value = self.content.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.content.get(name)
        values = [value] if isinstance(value, str) else value or []
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            raise self._wrong(name, "a list of texts")
        return tuple(values)

    def pattern(self, name: str, kind: type) -> dict[str, Any]:
        value = self.content.get(name) or {}
        if not isinstance(value, dict) or not all(_is_number(v, kind) for v in value.values()):
            raise self._wrong(name, "an object of numbers")
        if len(value) > _MOST_PATTERNS or not all(map(_is_harmless, value)):
            raise self._wrong(name, "an object whose keys are names of modules")
        return value

    def _wrong(self, name: str, expected: str) -> ConflictingFact:
        return ConflictingFact(
            f"{name} in adapter_config.json is not {expected}.",
            evidence={"file": self.file, "found": repr(self.content.get(name))[:80]},
            hint="get the adapter again, or correct the file.",
        )


def _is_number(value: object, kind: type) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) and value > 0 if kind is int else math.isfinite(value)


def _is_harmless(pattern: str) -> bool:
    if not _HARMLESS.fullmatch(pattern) or sum(map(pattern.count, "*+?")) > _MOST_REPEATS:
        return False
    try:
        _compiled(pattern)
    except re.error:
        return False
    return True
