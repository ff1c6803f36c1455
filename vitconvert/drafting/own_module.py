"""A module of the user's own: the sizes of its ViT, and whether a draft computes what it does.

What tensors do not show is tried: the module runs on noise, and the first configuration of which
our ViT gives the same numbers is the module's.
"""

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic as time
from typing import Any

import torch
from torch import Tensor, nn

from vitconvert.checkpoint import ReadOptions
from vitconvert.comparison import TOLERANCE
from vitconvert.config import ViTConfig
from vitconvert.config.field_values import parse_field
from vitconvert.documents import JsonObject
from vitconvert.drafting.entries import Entry, depth_of, entries_of, has, knowledge, score
from vitconvert.errors import MissingFact, UsageError, VitConvertError
from vitconvert.model import ViT
from vitconvert.parity.own_models import verify_model
from vitconvert.programs.isolation import isolated

# What code calls these sizes; attributes of modules, and of what they keep as their configuration.
_HEADS = ("num_heads", "n_heads", "heads", "nhead", "n_head", "nheads", "num_attention_heads")
_IMAGE = ("image_size", "img_size", "input_size")
_CONFIGS = ("config", "cfg", "args", "hparams", "params")
_QKV, _PAIRS = "blocks.{i}.attn.qkv", ("blocks.{i}.attn.kv", "blocks.{i}.attn.qk")
_SAME = 1e-7  # relative, in float64: no other configuration can be nearer by more than rounding
_TRIES = 1000
_SECONDS = 60


@dataclass(frozen=True)
class OwnModule:
    """A module, and the ViT that its tensors seem to be.

    Attributes:
        name: As reports call it.
        module: A copy with random parameters, since those of a new module are zeros and ones.
        config: The most likely configuration.
        open: What its tensors do not show: for each question, the answers, the likely one first.
    """

    name: str
    module: nn.Module
    config: ViTConfig
    open: Sequence[Sequence[JsonObject]]

    @property
    def tried(self) -> frozenset[str]:
        """The fields that no tensor shows, and that only a run can."""
        return frozenset(name for answers in self.open for answer in answers for name in answer)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by its own names."""
        return dict(self.module.state_dict())


def own_module(name: str, built: object, overrides: JsonObject | None = None) -> OwnModule:
    """Find out the sizes of a module's ViT.

    Args:
        name: As reports call it.
        built: What the user's code built.
        overrides: Fields of ViTConfig that the user states.

    Raises:
        UsageError: It is no `nn.Module`, or has no blocks of a ViT.
        MissingFact: Its tensors and modules do not show a size.
    """
    if not isinstance(built, nn.Module):
        raise UsageError(
            "Only a torch module has tensors of which a table can be drafted.",
            evidence={"module": name, "found": type(built).__name__},
        )
    module = _randomised(built)
    stated = dict(overrides or {})
    parsed = _parsed({name: stated[name] for name in ("num_heads",) if name in stated})
    facts, tried = _Facts(module, parsed.get("num_heads", 0)).found()
    guessed = {name for answers in tried for answer in answers for name in answer}
    if lacking := [
        field for field in ("image_size", "num_heads") if field not in {**facts, **stated}
    ]:
        raise MissingFact(
            "The module does not show everything that decides the function.",
            evidence={
                "module": name,
                "sizes found": ", ".join(f"{k}={v}" for k, v in facts.items() if k not in guessed),
            },
            hint=f"{' '.join(f'--set {field}=...' for field in lacking)} states it.",
        )
    config = ViTConfig(**_parsed({**facts, **stated}))
    left = [[a for a in answers if not a.keys() & stated.keys()] for answers in tried]
    return OwnModule(name, module, config, [answers for answers in left if answers])


def _parsed(facts: Mapping[str, object]) -> dict[str, Any]:
    return {name: parse_field(name, value) for name, value in facts.items()}


def _randomised(module: nn.Module) -> nn.Module:
    module = copy.deepcopy(module).cpu().float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            factor = parameter.ndim == 1 and not name.endswith("bias")
            noise = torch.randn(parameter.shape, generator=generator)
            fan = math.prod(parameter.shape[1:]) if parameter.ndim > 1 else 25
            parameter.copy_(noise * max(fan, 1) ** -0.5 + (1.0 if factor else 0.0))
    return module


class _Facts:
    """What the tensors of a module show of its ViT, and what its modules say of themselves."""

    def __init__(self, module: nn.Module, heads: int) -> None:
        self.module = module
        floats = {
            k: tuple(t.shape) for k, t in module.state_dict().items() if t.is_floating_point()
        }
        self.depth = depth_of(floats)
        self.heads = heads or self._attribute(_HEADS) or 0
        self.entries = entries_of(floats, self.depth, self.heads or None, whole=True).entries
        counted = Counter(e.heads for e in self.entries if e.heads)
        self.heads = self.heads or (counted.most_common(1)[0][0] if counted else 0)
        self.owners = _owners(module)
        self.blocks = [e for e in self.entries if e.looped]
        self.beside = [e for e in self.entries if not e.looped]

    def found(self) -> tuple[dict[str, object], list[Sequence[JsonObject]]]:
        """Fields, and of those that are likely at best, other answers."""
        if not self.blocks:
            raise UsageError(
                "The module has no tensors that repeat as the blocks of a ViT do.",
                evidence={"tensors": ", ".join(e.text for e in self.entries[:6])},
            )
        facts: dict[str, object] = {"depth": self.depth, "embed_dim": self.width}
        facts |= self._patches() | self._attention() | self._mlp() | self._norms() | self._last()
        facts |= self._tokens(facts)
        named: dict[str, Sequence[object]] = {
            "activation": _first(
                self._activation(), ("gelu", "gelu_tanh", "relu", "silu", "quick_gelu")
            ),
            "norm_eps": _first(facts["norm_eps"], (1e-5, 1e-6, 1e-12)),
            "attention_scale": [None, self.width**-0.5, 1.0],
        }
        if facts.get("representation_size"):
            named["representation_activation"] = ("tanh", "gelu", "relu")
        tried: list[Sequence[JsonObject]] = [[*_poolings(bool(facts["class_token"]))]]
        if facts.get("position_embedding") == "none":
            tried.append([*_unstored_positions(bool(facts["class_token"]))])
        tried += [[{name: value} for value in values] for name, values in named.items()]
        for answers in tried:
            facts |= answers[0]
        return {k: v for k, v in facts.items() if v is not None}, tried

    @property
    def width(self) -> int:
        """The most frequent length of the norms, or of the vectors of blocks."""
        norms = [m for m in self.module.modules() if _is_norm(m)]
        lengths = Counter(
            len(weight)
            for m in norms
            if (weight := getattr(m, "weight", None)) is not None and weight.ndim == 1
        )
        if not lengths:
            lengths = Counter(e.shape[0] for e in self.blocks if len(e.shape) == 1)
        return lengths.most_common(1)[0][0] if lengths else 0

    def _attribute(self, names: Sequence[str]) -> Any:
        """The most frequent value of attributes of these names."""
        found: Counter[Any] = Counter()
        for part in self.module.modules():
            configs = [vars(part).get(name) for name in _CONFIGS]
            for place in (
                vars(part),
                *(c if isinstance(c, Mapping) else getattr(c, "__dict__", {}) for c in configs),
            ):
                for name in names:
                    value = place.get(name)
                    if isinstance(value, int | tuple) and not isinstance(value, bool):
                        found[value] += 1
        return found.most_common(1)[0][0] if found else None

    def _patches(self) -> dict[str, object]:
        width = self.width
        for part in self.module.modules():
            if isinstance(part, nn.Conv2d) and part.out_channels == width:
                return {
                    "patch_size": tuple(part.kernel_size),
                    "in_channels": part.in_channels,
                    "patch_bias": part.bias is not None,
                    **(
                        {"patch_stride": tuple(part.stride)}
                        if part.stride != part.kernel_size
                        else {}
                    ),
                }
        for part in self.module.modules():
            if isinstance(part, nn.Linear) and part.out_features == width:
                for channels in (3, 1, 4):
                    side = math.isqrt(part.in_features // channels)
                    if side > 1 and side * side * channels == part.in_features:
                        return {
                            "patch_size": (side, side),
                            "in_channels": channels,
                            "patch_bias": part.bias is not None,
                        }
        return {}

    def _matrices(self) -> Iterator[tuple[Entry, int, bool]]:
        """Each matrix of a block: the size beside the width (of all heads), and if it widens."""
        width = self.width
        for entry in self.blocks:
            shape, heads = entry.shape, entry.heads or 1
            if len(shape) != 2 or width not in shape:
                continue
            first = shape[0] == width and shape[1] != width
            turned = entry.leaf == "kernel"
            other = (shape[1] if first else shape[0]) * heads
            yield entry, other, first == turned if shape[0] != shape[1] else True

    def _attention(self) -> dict[str, object]:
        facts: dict[str, object] = {"num_heads": self.heads or None}
        biased = {e.stem for e in self.blocks if e.kind == "bias"}
        inner = self.width
        known = knowledge()
        for entry, other, widens in self._matrices():
            steps = [score(entry.words, f"blocks.{{i}}.attn.qkv[{n}]") > 1 for n in range(3)]
            if has(entry.words, known["joined"][_QKV]) or (
                other == 3 * self.width and other % 3 == 0
            ):
                inner = other // 3
            elif any(has(entry.words, known["names"]["attention"][pair]) for pair in _PAIRS):
                inner = other // 2
            elif any(steps) and widens:
                inner = other
            else:
                continue
            facts["qkv_bias"] = entry.stem in biased
        for entry, other, _ in self._matrices():
            if score(entry.words, "blocks.{i}.attn.proj") > 1 and other == inner:
                facts["proj_bias"] = entry.stem in biased
        if self.heads and inner % self.heads == 0:
            facts["head_dim"] = inner // self.heads
        return facts

    def _mlp(self) -> dict[str, object]:
        """Widening and narrowing matrices, of which the attention has others of one kind alone."""
        known = knowledge()
        joined = [
            *known["joined"][_QKV],
            *(w for p in _PAIRS for w in known["names"]["attention"][p]),
        ]
        out: Counter[int] = Counter()
        back: Counter[int] = Counter()
        for entry, other, widens in self._matrices():
            attention = any(
                score(entry.words, f"blocks.{{i}}.attn.{n}") > 1 for n in ("qkv", "proj")
            )
            if has(entry.words, joined):
                continue
            if other != self.width and not (attention and len(set(entry.words)) and entry.heads):
                (out if widens else back)[other] += 1
        both = [size for size in back if out[size] == 1]
        if both:
            hidden = max(both)
        elif gated := [size for size in back if out[2 * size] or out[size] == 2]:
            return {"mlp_dim": max(gated), "gated_mlp": True}
        else:
            hidden = self.width
        bias = any(e.kind == "bias" and e.shape == (hidden,) for e in self.blocks)
        return {"mlp_dim": hidden, **({} if bias or hidden == self.width else {"mlp_bias": False})}

    def _norms(self) -> dict[str, object]:
        eps = [
            m.eps
            for m in self.module.modules()
            if _is_norm(m) and isinstance(getattr(m, "eps", None), float)
        ]
        kinds = {type(m).__name__.lower() for m in self.module.modules() if _is_norm(m)}
        facts: dict[str, object] = {"norm_eps": Counter(eps).most_common(1)[0][0] if eps else 1e-5}
        if any("rms" in kind for kind in kinds):
            facts |= {"norm": "rms", "norm_bias": False}
        vectors = [e for e in self.beside if e.kind == "weight" and e.shape == (self.width,)]
        norms = [e for e in vectors if _is_norm(self.owners.get(e.keys[0]))]
        facts["final_norm"] = bool(norms)
        if norms and len({e.stem for e in norms}) > 1:
            facts["pre_norm"] = True
        if eps and norms:
            last = getattr(self.owners.get(norms[-1].keys[0]), "eps", None)
            if last is not None and last != facts["norm_eps"]:
                facts["final_norm_eps"] = last
        scales = [e for e in self.blocks if e.shape == (self.width,) and not e.kind]
        if any(score(e.words, f"blocks.{{i}}.ls{n}") for e in scales for n in (1, 2)):
            facts["layer_scale"] = True
        return facts

    def _last(self) -> dict[str, object]:
        """The last matrix beside the blocks that reads the width: the classes."""
        linear = [
            e
            for e in self.beside
            if len(e.shape) == 2 and isinstance(self.owners.get(e.keys[0]), nn.Linear)
        ]
        before = [e for e in linear if e.shape[1] == self.width]
        if not before:
            return {"num_classes": 0}
        last, facts = before[-1], {}
        for other in linear[linear.index(last) + 1 :]:
            if other.shape[1] == last.shape[0]:  # a layer between
                facts["representation_size"] = last.shape[0]
                last = other
        bias = any(e.kind == "bias" and e.stem == last.stem for e in self.beside)
        return {"num_classes": last.shape[0], **facts, **({} if bias else {"head_bias": False})}

    def _tokens(self, facts: Mapping[str, object]) -> dict[str, object]:
        free = [e for e in self.beside if not isinstance(self.owners.get(e.keys[0]), _LAYERS)]
        tokens = [e for e in free if math.prod(e.shape) == self.width]
        tables = [
            e for e in free if len(e.shape) > 1 and e.shape[-1] == self.width and e not in tokens
        ]
        named = [e for e in tables if score(e.words, "pos_embed") > 1] or tables
        rows = math.prod(named[0].shape) // self.width if named else 0
        found: dict[str, object] = {"class_token": bool(tokens)}
        image, patch = self._attribute(_IMAGE), facts.get("patch_size")
        if isinstance(image, int):
            image = (image, image)
        if image is None and isinstance(patch, tuple) and rows:
            for prefix in (1, 0) if tokens else (0,):
                side = math.isqrt(max(rows - prefix, 0))
                if side and side * side == rows - prefix:
                    image = (side * patch[0], side * patch[1])
                    break
        found["image_size"] = image
        if not named:
            found["position_embedding"] = "none"  # or computed ones, which are tried
        elif image and isinstance(patch, tuple):
            patches = image[0] // patch[0] * (image[1] // patch[1])
            found["no_embed_class"] = bool(tokens) and rows == patches
        return found

    def _activation(self) -> str | None:
        found: Counter[str] = Counter()
        for part in self.module.modules():
            name = type(part).__name__.lower()
            if isinstance(part, nn.GELU):
                found["gelu_tanh" if part.approximate == "tanh" else "gelu"] += 1
            elif isinstance(part, nn.TransformerEncoderLayer):
                called = getattr(part.activation, "__name__", "")
                found["relu" if "relu" in called else "gelu"] += 1
            else:
                known = {
                    "relu": "relu",
                    "silu": "silu",
                    "quickgelu": "quick_gelu",
                    "newgelu": "gelu_tanh",
                }
                found.update(value for word, value in known.items() if name.startswith(word))
        return found.most_common(1)[0][0] if found else None


_LAYERS = (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.MultiheadAttention)


def _poolings(class_token: bool) -> Iterator[JsonObject]:
    """What the head may read, the usual first."""
    if class_token:
        yield {"pooling": "token"}
        yield {"pooling": "avg", "pool_include_prefix": True}
    yield {"pooling": "avg"}
    yield {"pooling": "max"}


def _unstored_positions(class_token: bool) -> Iterator[JsonObject]:
    """What positions may be that no tensor holds."""
    yield {"position_embedding": "none", "no_embed_class": False}
    for after_token in (False, True) if class_token else (False,):
        yield {"position_embedding": "sincos1d", "no_embed_class": after_token}
    yield {"position_embedding": "sincos2d", "no_embed_class": False}
    yield {"position_embedding": "sincos2d_mae", "no_embed_class": False}


def _owners(module: nn.Module) -> dict[str, nn.Module]:
    """Name of a tensor -> the module that has it."""
    found = {}
    for path, part in module.named_modules():
        own = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        for name, _ in own:
            found[f"{path}.{name}" if path else name] = part
    return found


def _is_norm(module: object) -> bool:
    return isinstance(module, nn.Module) and "norm" in type(module).__name__.lower()


def _first(likely: object, usual: Sequence[object]) -> list[object]:
    return [*([likely] if likely is not None else []), *(one for one in usual if one != likely)]


@dataclass(frozen=True)
class Trial:
    """How far a draft's ViT is from the module.

    Attributes:
        difference: Relative to the largest number, of the nearest; infinite if none could run.
        vit: The nearest.
        choice: Which of the several ways to make it this was.
        why: Why none could run.
    """

    difference: float = math.inf
    vit: ViT | None = None
    choice: int = 0
    why: str = ""

    @property
    def equal(self) -> bool:
        """Whether both compute the same."""
        return self.difference <= TOLERANCE


Made = Callable[[], tuple[ViTConfig, Mapping[str, Tensor]]]
"""Makes a configuration, and tensors by canonical name."""


def try_out(own: OwnModule, several: Sequence[Made], tries: int = _TRIES) -> Trial:
    """Run the module and our ViT on the same noise, what is most likely first.

    Args:
        own: The module.
        several: Ways to make our ViT of its tensors.
        tries: How many of them, with answers to what is open, are run at most.
    """
    with isolated():
        generator = torch.Generator().manual_seed(0)
        size, channels = own.config.image_size, own.config.in_channels
        images = torch.randn(2, channels, *size, generator=generator)
        try:
            images, wanted = _run(own.module, images)
        except Exception as error:  # the code is not ours
            lines = str(error).splitlines() or [""]
            return Trial(why=f"{type(error).__name__}: {lines[0][:200]}")
        if wanted is None:
            return Trial(why="it returns no tensor")
        made = [_made(one) for one in several]
        best, until = Trial(why="no configuration gives an output of its shape"), time() + _SECONDS
        for choice, *answers in _likely_first([range(len(several)), *own.open])[:tries]:
            vit = _vit(made[choice], answers)
            if vit is None:
                continue
            found = vit.to(images.dtype)(images)
            if found.shape == wanted.shape:
                difference = float((found - wanted).abs().max() / wanted.abs().max())
                best = min(best, Trial(difference, vit, choice), key=lambda one: one.difference)
            if best.difference <= _SAME or time() > until:
                break
    return best


def _run(module: nn.Module, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """The images and what a module makes of them: in float64, which its code may not allow."""
    try:
        doubled = images.double()
        return doubled, _logits(copy.deepcopy(module).double()(doubled))
    except Exception:
        return images, _logits(module(images))


def _likely_first(questions: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """All answers together; those first that are the likely ones but for one, then but for two."""
    tries = itertools.product(*(range(len(answers)) for answers in questions))
    ordered = sorted(tries, key=lambda one: (sum(n > 0 for n in one), one))[:_TRIES]
    return [tuple(q[n] for q, n in zip(questions, one, strict=True)) for one in ordered]


def _made(make: Made) -> tuple[ViTConfig, Mapping[str, Tensor]] | None:
    try:
        return make()
    except VitConvertError:
        return None


def _vit(
    made: tuple[ViTConfig, Mapping[str, Tensor]] | None, answers: Sequence[JsonObject]
) -> ViT | None:
    """Our ViT with these answers, or None where they contradict each other."""
    if made is None:
        return None
    config, tensors = made
    try:
        vit = ViT(config.replace(**{k: v for one in answers for k, v in one.items()})).eval()
        vit.load_state_dict(dict(tensors))
    except (VitConvertError, RuntimeError):
        return None
    return vit


def _logits(output: object) -> Tensor | None:
    if isinstance(output, Mapping):
        output = next((v for k, v in output.items() if "logit" in str(k)), None)
    if isinstance(output, tuple | list):
        output = next((one for one in output if isinstance(one, Tensor)), None)
    if not isinstance(output, Tensor):
        return getattr(output, "logits", None)
    return output.squeeze() if output.ndim > 2 else output


def where_departs(own: OwnModule, vit: ViT, table: str) -> str:
    """At which layer a module and the nearest ViT depart, and the likely cause, or nothing."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "draft.toml"
        path.write_text(table, encoding="utf-8", newline="\n")
        try:
            report = verify_model(own.module, vit.float(), options=ReadOptions(table=path))
        except VitConvertError:
            return ""
    departs = report.first_divergence
    return f"; they depart at {departs.layer}: {departs.cause}" if departs else ""
