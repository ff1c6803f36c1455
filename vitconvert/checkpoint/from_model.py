"""A model in memory as a checkpoint, with what the files that it was loaded from said besides.

`build_model` gives a model a `LoadedFrom`, and its head the names of the classes. Both are plain
data: they are copied and pickled with the model, and are in no state dict. The names go with the
head, as a new head is for other classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vitconvert.checkpoint.checkpoint import Checkpoint
from vitconvert.checkpoint.companions import Companions
from vitconvert.checkpoint.reading import in_memory
from vitconvert.checkpoint.weights import Weights
from vitconvert.config import ViTConfig
from vitconvert.documents import JsonObject
from vitconvert.errors import ConflictingFact, UsageError
from vitconvert.facts.accounts import Ledger
from vitconvert.formats import Container
from vitconvert.labels import Labels
from vitconvert.preprocessing import Preprocessing
from vitconvert.sources import Located
from vitconvert.tables.detection import recognise
from vitconvert.tables.dialects import builtin_tables

if TYPE_CHECKING:
    from torch import nn

    from vitconvert.model import ViT

REFERENCE = "a model in memory"
_OWN = "vit"  # the dialect of the names that models have
_SIZES = ("image_size", "patch_size", "in_channels", "num_classes")
_SHOWN = 3  # modules
_GATHERED = (
    "gather the weights in a ViT of its own first: load_state_dict of "
    "`get_model_state_dict` with full_state_dict=True."
)
_QUANTISED = "save the model before it is quantised, and quantise it once it is loaded."
_BAKED = (
    "bake them in first: remove, remove_weight_norm or remove_spectral_norm of torch.nn.utils "
    "(`prune.remove` after pruning)."
)
# What makes other modules and tensors of a model's own, by its Python module or their names.
_MAKERS = {
    "peft.": "merge the adapter first: `model = peft_model.merge_and_unload()`.",
    "torch.distributed.": _GATHERED,
    "_flat_param": _GATHERED,
    "torch.nn.parallel": "save the `module` that is wrapped.",
    "torch.nn.utils.parametri": "bake them in first: "
    "`torch.nn.utils.parametrize.remove_parametrizations`.",
    **{f".{name}": _BAKED for name in ("weight_mask", "bias_mask", "weight_g", "weight_u")},
    "torchao.": _QUANTISED,
    "torch.ao.": _QUANTISED,
    "torch._dynamo.": "compile layers in place, which leaves them what they are: "
    "`layer.compile()`.",
}


@dataclass(frozen=True, kw_only=True)
class LoadedFrom:
    """What a checkpoint says besides weights, which a model of it carries along.

    Attributes:
        source: Where the checkpoint came from, as `vitconvert.json` says it.
        first_source: Where its weights came from first.
        dialect: The name of its table.
        name: The architecture, with its tag, that its reference named.
        called: As `Checkpoint.called`.
        config: The configuration, before the model was changed.
        notes: What was changed on reading, and what of the file is not in the model.
        labelled: Whether it names its classes, or they are assumed.
        their_config: Its project's own configuration.
        assumed: As `Ledger.assumed`.
        preprocessing: How an image becomes its input; None: unknown.
    """

    source: JsonObject
    first_source: JsonObject
    dialect: str
    name: str | None
    called: tuple[str, ...]
    config: ViTConfig
    notes: tuple[str, ...]
    labelled: bool
    their_config: JsonObject = field(repr=False)
    assumed: Mapping[str, str] = field(repr=False)
    preprocessing: Preprocessing | None


def remember(model: "ViT", checkpoint: Checkpoint, changes: Sequence[str] = ()) -> None:
    """Give a model what its checkpoint says besides weights, and its head the names of classes.

    Args:
        model: The model, with the checkpoint's tensors.
        checkpoint: What it was built of.
        changes: Further changes on the way, a sentence each.
    """
    notes = [f"when it was loaded: {text}" for text in (*checkpoint.ledger.changed, *changes)]
    if checkpoint.text or checkpoint.text_problem:
        notes.append("the text encoder of what was loaded is not in it: convert that to keep it")
    source = checkpoint.source_record(checkpoint.located.sha256)
    model.loaded_from = LoadedFrom(
        source=source,
        first_source=checkpoint.first_source or source,
        dialect=checkpoint.loaded.dialect if checkpoint.loaded else checkpoint.dialect,
        name=checkpoint.name,
        called=checkpoint.called,
        config=checkpoint.config,
        notes=tuple(notes),
        labelled=checkpoint.labels is not None,
        their_config=dict(checkpoint.their_config),
        assumed=dict(checkpoint.ledger.assumed),
        preprocessing=checkpoint.preprocessing,
    )
    model.head.labels = checkpoint.labels  # type: ignore[assignment]


def checkpoint_of(model: "ViT") -> Checkpoint:
    """A model in memory, as it is now, as a checkpoint in its own names.

    The names of classes are those of the checkpoint that it was loaded from, if its head is still
    the one that was loaded; the preprocessing is that checkpoint's too.

    Raises:
        UsageError: `config` does not say what the model computes: layers were pruned, wrapped,
            quantised or replaced. Or its weights are on the device "meta".
    """
    check_as_configured(model)
    if empty := [name for name, tensor in model.state_dict().items() if tensor.is_meta]:
        raise UsageError(
            'The model is on the device "meta", where weights have no numbers.',
            evidence={"without numbers": len(empty), "the first": empty[0]},
            hint="load its weights first: load_state_dict(..., assign=True).",
        )
    config, loaded = model.config, model.loaded_from
    assert loaded is None or isinstance(loaded, LoadedFrom)
    if loaded is not None and not _is_like(config, loaded.config):
        loaded = replace(loaded, dialect=_OWN, name=None)  # another function than it has a name for
    container = in_memory({name: t.detach().cpu() for name, t in model.state_dict().items()})
    container = replace(container, config=loaded.their_config if loaded else {})
    shapes = {name: info.shape for name, info in container.manifest.items()}
    recognised = recognise(shapes, [builtin_tables()[_OWN]])
    weights = Weights(container=container, recognised=recognised, config=config)
    nowhere = Located(reference=REFERENCE, weights=None)
    labels: Labels | None = getattr(model.head, "labels", None)
    return Checkpoint(
        tensors=weights.tensors,
        config=config,
        preprocessing=loaded.preprocessing if loaded else None,
        own_labels=None if labels is None or labels.assumed else labels,
        may_assume_labels=labels is not None,
        ledger=_ledger(container, loaded, labels),
        weights=weights,
        companions=Companions(located=nowhere, container=container),
        opened={},
        loaded=loaded,
    )


def _is_like(config: ViTConfig, loaded: ViTConfig) -> bool:
    """Whether two configurations are of one architecture, in whatever sizes."""
    sizes = {name: getattr(loaded, name) for name in _SIZES}
    try:
        return config.replace(**sizes).function() == loaded.function()
    except ConflictingFact:
        return False


def _ledger(container: Container, loaded: LoadedFrom | None, labels: Labels | None) -> Ledger:
    if loaded is None:
        notes = ["it was made in memory, of a configuration: what it learned is not known here"]
    else:
        notes = ["it was loaded, and whether its weights were trained since is not known here"]
        notes += loaded.notes
        if loaded.labelled and labels is None:
            notes += ["labels: those that were loaded went with the head, which is another now"]
    names = tuple(container.manifest)
    assumed = loaded.assumed if loaded else {}
    return Ledger(dialect=_OWN, read=len(names), used=names, assumed=assumed, notes=tuple(notes))


def check_as_configured(model: "ViT") -> None:
    """Make sure that a model has the modules of its configuration, and tensors of their shapes.

    Raises:
        UsageError: It has others: layers were pruned, wrapped, quantised or replaced.
    """
    wanted, found = _parts(type(model)(model.config, device="meta")), _parts(model)
    differing = [name for name in {**found, **wanted} if wanted.get(name) != found.get(name)]
    if not differing:
        return
    described = [f"{name} {found.get(name, '')}" for name in differing]
    makers = [maker for text in described for maker in _MAKERS if maker in text]
    hint = (
        _MAKERS[makers[0]]
        if makers
        else (
            "`model.config = model.config.replace(...)` states what it is now, if a ViT is; "
            "reset_classifier makes a head of another size."
        )
    )
    shown = differing[:_SHOWN]
    raise UsageError(
        "The model is not what its configuration says, so it cannot be saved as that.",
        evidence={
            "differing": len(differing),
            **{
                name: f"{found.get(name, 'none')}, not {wanted.get(name, 'none')}" for name in shown
            },
        },
        hint=hint,
    )


def _parts(model: "nn.Module") -> dict[str, str]:
    """The kind of every module and tensor of a model by name, with the shapes of tensors."""
    kinds = {
        name: _kind(module) for name, module in model.named_modules(remove_duplicate=False) if name
    }
    tensors = model.state_dict(keep_vars=True).items()
    # Layers that are quantised have no tensors there, but a dtype and what is packed.
    sizes = {name: list(getattr(tensor, "shape", ())) for name, tensor in tensors}
    return kinds | {name: f"{_kind(tensor)} {sizes[name]}" for name, tensor in tensors}


def _kind(thing: object) -> str:
    """The class of a module, or of what is in a parameter."""
    data = getattr(thing, "data", thing)
    return f"{type(data).__module__}.{type(data).__qualname__}"
