"""Adapters: LoRA and other kinds of PEFT, in a directory of their own or among a model's tensors.

Before the dialect is recognised, `separate_adapter` sets the adapter apart; after it,
`merge_adapter` lays it over the model's file. Only headers and adapter_config.json are read here.
"""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from vitconvert.checkpoint.adapters.changes import Change, Factors, LowRank, Product
from vitconvert.checkpoint.adapters.config import (
    IA3,
    LOHA,
    LOKR,
    AdapterConfig,
    parse_adapter_config,
)
from vitconvert.checkpoint.adapters.merging import Adapter, Merge, merge_into
from vitconvert.checkpoint.adapters.placement import ANY, AdapterNames, Wanted, read_names
from vitconvert.checkpoint.options import ReadOptions
from vitconvert.checkpoint.recognition import RecognisedViT, gather, prove
from vitconvert.documents import read_object
from vitconvert.errors import (
    ConflictingFact,
    MissingFact,
    SourceError,
    TensorMismatch,
    UsageError,
    as_typed,
)
from vitconvert.formats import Container, open_container
from vitconvert.sources import Located, locate
from vitconvert.sources.references import looks_like_path, published
from vitconvert.tables.detection import recognise

# In training as in merging, PEFT 0.21 adds the change of MultiheadAttention's out_proj twice: for
# that of the whole layer, and for out_proj's own (tuners/lora/layer.py, MultiheadAttention.merge).
_TIMES_INSIDE = 2
_ITS_FILE = "adapter_model"  # PEFT's own name: adapters of other types have other tensors


def separate_adapter(
    container: Container, located: Located, options: ReadOptions
) -> tuple[Container, Adapter | None]:
    """The model's own tensors, and the adapter to merge into them: one beside, or one within.

    Raises:
        TensorMismatch: This is an adapter alone, or one whose tensors do not add up.
        MissingFact: Nothing states the scale.
        UsageError: An adapter is given for a file that has one, or a scale for one without.
    """
    names = read_names(container.manifest)
    named_so = located.adapter is not None and container.path.name.startswith(_ITS_FILE)
    if not names.changed and not named_so:
        if options.adapter is not None:
            return container, open_adapter(options.adapter, options.lora_scale)
        if options.lora_scale is not None:
            raise UsageError(
                "lora_scale is for an adapter, and none is given.",
                hint="--adapter (in Python, adapter=) names one; else leave the scale out.",
            )
        return container, None
    if not names.has_base:
        # An adapter of another type is refused by its name.
        base = _stated(located.adapter).base if located.adapter else None
        merging = "give the state dict of the model, and adapter= the directory of the adapter."
        if located.weights is not None:
            # A base that is a path on another machine, or from another folder, is BASE.
            named = base if base and "/" in base and not looks_like_path(base) else "BASE"
            command = as_typed("vitconvert", "hf", named, "--adapter", located.reference)
            merging = f"`{command}` merges the two (in Python, adapter=)."
            if base and _lies_here(base, located):
                command = as_typed("vitconvert", "convert", located.reference)
                merging = f"`{command}` merges it into {base}, as do verbs that read weights."
        raise TensorMismatch(
            "This is only an adapter, without its base model.",
            evidence={
                "file": container.path,
                "its base": base or "not named by it",
                "tensors": len(container.manifest),
            },
            hint=merging,
        )
    if options.adapter is not None:
        raise UsageError(
            "The model contains an adapter, and another one is given.",
            evidence={"file": container.path, "holds": next(iter(names.changed)) + ".lora..."},
            hint="convert the model with its own first, then merge the other.",
        )
    config = _config(located, container, options.lora_scale)
    adapter = _adapter(container, names, config, "within the file", saved=names.saved, files=())
    return container.renamed({**names.rest, **names.replaced}), adapter


def merge_adapter(
    vit: RecognisedViT, adapter: Adapter, options: ReadOptions
) -> tuple[RecognisedViT, Merge]:
    """The ViT as it is with the adapter, whose head may make another dialect of it.

    Raises:
        TensorMismatch: The adapter does not fit the model, or the model is not one without it.
    """
    base, _ = prove(vit, *gather(vit, options))
    merge = merge_into(base, adapter, vit.part)
    container = merge.container()
    shapes = {name: info.shape for name, info in container.manifest.items()}
    tables = options.tables(vit.companions.own)
    recognised = recognise(shapes, tables, vit.companions.config)
    with_adapter = replace(
        vit,
        container=container,
        part=replace(vit.part, recognised=recognised),
        changes=(*vit.changes, merge.description),
    )
    return with_adapter, merge


def with_base(located: Located, options: ReadOptions) -> tuple[Located, ReadOptions]:
    """For an adapter alone, the model that it names and the adapter as an option, if it is found.

    A path counts if the adapter lies on this machine too. A repository is fetched as the adapter
    was: from the cache alone where no server may be asked.

    Raises:
        VitConvertError: Its adapter_config.json is none of LoRA's or DoRA's.
    """
    if located.adapter is None or located.weights is None or options.adapter is not None:
        return located, options
    if not located.weights_file().name.startswith(_ITS_FILE):
        return located, options
    config = _stated(located.adapter)
    base = config.base or ""
    try:
        if _lies_here(base, located):
            found = locate(f"local-dir:{base}")
        else:
            how = located.fetching
            found = locate(
                f"hf:{base}",
                revision=config.revision,
                token=how.token,
                cache_dir=how.cache_dir,
                offline=how.offline,
                quiet=how.quiet,
            )
    except (SourceError, UsageError):  # the command that merges them says why
        return located, options
    note = f"the adapter was merged into {published(base)}, which its adapter_config.json names"
    return replace(found, notes=(*found.notes, note)), replace(options, adapter=located)


def _lies_here(base: str, adapter: Located) -> bool:
    """Whether the base of an adapter that is on this machine is a path here."""
    is_here = adapter.repo is None and adapter.url is None
    return is_here and os.path.exists(base)  # noqa: PTH110 (never an error)


def open_adapter(reference: object, scale: float | None) -> Adapter:
    """Open a PEFT directory or repository, and read headers and adapter_config.json.

    Raises:
        VitConvertError: As `separate_adapter`.
    """
    located = reference if isinstance(reference, Located) else locate(str(reference))
    path = located.weights_file()
    container = open_container(path)
    config = _config(located, container, scale)
    names = read_names(container.manifest)
    if not names.changed and not names.saved:
        raise TensorMismatch(
            "No tensor of this file has the name of an adapter's, so it is not an adapter.",
            evidence={"file": path, "tensors": ", ".join(list(container.manifest)[:3])},
        )
    name = located.repo or path.parent.name
    name = f"{name}@{located.revision[:12]}" if located.revision else name
    files = (*container.files, *((located.adapter,) if located.adapter else ()))
    saved = {**names.rest, **names.saved}
    return _adapter(container, names, config, name, saved=saved, files=files)


def _stated(file: Path) -> AdapterConfig:
    return parse_adapter_config(read_object(file), str(file))


def _config(located: Located, container: Container, scale: float | None) -> AdapterConfig:
    """What adapter_config.json says, or else the user of the scale."""
    if located.adapter is not None and scale is not None:
        raise UsageError(
            "adapter_config.json states the scale of this adapter already.",
            evidence={"file": located.adapter},
            hint="leave out --lora-scale (in Python, lora_scale).",
        )
    if located.adapter is not None:
        return _stated(located.adapter)
    if scale is None:
        raise MissingFact(
            "The scale of the low-rank matrices is unknown.",
            evidence={"file": container.path, "missing": "adapter_config.json beside it"},
            meaning="The scale is lora_alpha / r in the program that trained them.",
            hint="--lora-scale NUMBER (in Python, lora_scale=) states it.",
        )
    return AdapterConfig(scale=scale)


def _adapter(
    container: Container,
    names: AdapterNames,
    config: AdapterConfig,
    name: str,
    *,
    saved: Mapping[str, str],
    files: tuple[Path, ...],
) -> Adapter:
    """An adapter whose header adds up.

    Raises:
        TensorMismatch, ConflictingFact: It does not, or not with its configuration.
    """
    file, manifest = container.path, container.manifest
    if len(names.adapters) > 1:
        raise TensorMismatch(
            "The file holds several adapters.",
            evidence={"file": file, "adapters": ", ".join(sorted(names.adapters))},
            hint="save only the one you need, with PEFT's save_pretrained.",
        )
    for key in (*saved.values(), *(k for roles in names.changed.values() for k in roles.values())):
        if not manifest[key].dtype.startswith(("float", "bfloat")):
            raise TensorMismatch(
                "A tensor of the adapter is not stored as floating-point numbers.",
                evidence={"file": file, "tensor": key, "dtype": manifest[key].dtype},
            )
    changes: dict[str, Change] = {}
    wanted = {n: Wanted(shape=manifest[key].shape, saved=True) for n, key in saved.items()}
    biases: dict[str, tuple[str, float]] = {}
    for module, roles in names.changed.items():
        weight, own_bias = f"{module}.weight", f"{module}.bias"
        if config.kind == IA3:
            factors, shape = _factors(module, roles, container, config)
            changes[weight] = factors
            if factors.axis == 0:
                changes[own_bias] = factors
                wanted[own_bias] = Wanted(shape=shape[:1], optional=True)
        elif config.kind in (LOHA, LOKR):
            changes[weight], shape = _product(module, roles, container, config)
        else:
            one, shape = _low_rank(module, roles, container, config)
            if module in names.inside:
                one = replace(one, scale=one.scale * _TIMES_INSIDE)
            changes[weight] = one
            if bias := roles.get("up.bias"):
                biases[own_bias] = bias, one.scale
                wanted.setdefault(own_bias, Wanted(shape=manifest[bias].shape))
        wanted[weight] = Wanted(
            shape=shape, flat=isinstance(changes[weight], Product) and len(shape) == 2
        )
    trained = config.modules_to_save
    if trained and not any(f".{module}." in f".{key}" for key in saved for module in trained):
        raise TensorMismatch(
            "The adapter lacks the modules that it was trained with as a whole.",
            evidence={
                "file": file,
                "adapter_config.json": f"modules_to_save = {', '.join(trained)}",
            },
            hint="it is incomplete; get it again.",
        )
    return Adapter(
        container=container,
        files=files,
        config=config,
        name=name,
        wanted=wanted,
        changes=changes,
        biases=biases,
        saved=saved,
    )


def _low_rank(
    module: str, roles: Mapping[str, str], container: Container, config: AdapterConfig
) -> tuple[LowRank, tuple[int, ...]]:
    """The change of a module's weight, and the weight's shape."""
    file, shapes = container.path, {key: container.manifest[key].shape for key in roles.values()}
    embedding = "embedding_down" in roles
    prefix = "embedding_" if embedding else ""
    down, up = (roles.get(f"{prefix}{side}") for side in ("down", "up"))
    unknown = roles.keys() - {f"{prefix}down", f"{prefix}up", "up.bias", "magnitude"}
    if down is None or up is None or unknown:
        raise TensorMismatch(
            "A module of the adapter lacks the tensors of LoRA or DoRA.",
            evidence={"file": file, "module": module, "tensors": ", ".join(roles.values())},
            hint="the file is incomplete, or of a variant that is not merged here.",
        )
    shape = _shape_of_product(shapes[down], shapes[up], embedding=embedding)
    if shape is None:
        raise TensorMismatch(
            "The two matrices of a module do not fit each other.",
            evidence={"file": file, down: list(shapes[down]), up: list(shapes[up])},
            hint="the adapter is damaged, or of a variant that is not merged here.",
        )
    magnitude = roles.get("magnitude")
    if config.dora is not None and config.dora != (magnitude is not None):
        raise ConflictingFact(
            "adapter_config.json and the tensors of the adapter contradict each other about DoRA.",
            evidence={
                "file": file,
                "adapter_config.json": f"use_dora = {str(config.dora).lower()}",
                module: "has a magnitude vector" if magnitude else "has no magnitude vector",
            },
            hint="the two are of different adapters; get both again.",
        )
    if magnitude and [n for n in shapes[magnitude] if n != 1] != [n for n in shape[:1] if n != 1]:
        raise TensorMismatch(
            "A magnitude vector does not have one number for each output.",
            evidence={"file": file, magnitude: list(shapes[magnitude]), "outputs": shape[0]},
        )
    scale = config.scale_of(module, shapes[down][0])
    change = LowRank(
        down=down,
        up=up,
        rank=shapes[down][0],
        scale=scale,
        magnitude=magnitude,
        embedding=embedding,
    )
    return change, shape


def _factors(
    module: str, roles: Mapping[str, str], container: Container, config: AdapterConfig
) -> tuple[Factors, tuple[int, ...]]:
    """IA3's change of a module's weight, and what it shows of the weight's shape."""
    _check_roles(module, roles, [{"factors"}], container)
    shape = container.manifest[roles["factors"]].shape
    # (out, 1) or (1, in); of a convolution, (1, out or in, 1, 1).
    of_inputs = config.is_feedforward(module)
    place = int(of_inputs) if len(shape) == 2 else 1
    if any(n != 1 for axis, n in enumerate(shape) if axis != place):
        raise ConflictingFact(
            "adapter_config.json and the tensors of the adapter do not say the same of a module.",
            evidence={
                "file": container.path,
                "module": f"{module}, {'' if of_inputs else 'not '}among feedforward_modules",
                "tensor": list(shape),
            },
            hint="the two are of different adapters; get both again.",
        )
    known = [ANY] * len(shape)
    known[int(of_inputs)] = shape[place]
    return Factors(factors=roles["factors"], axis=int(of_inputs)), tuple(known)


def _product(
    module: str, roles: Mapping[str, str], container: Container, config: AdapterConfig
) -> tuple[Product, tuple[int, ...]]:
    """LoHa's or LoKr's change of a module's weight, and the weight's shape."""
    start, kronecker = ("lokr", True) if config.kind == LOKR else ("hada", False)
    parts = [
        [(f"{start}_w{n}_a", f"{start}_w{n}_b"), *([(f"{start}_w{n}",)] if kronecker else [])]
        for n in (1, 2)
    ]
    _check_roles(
        module, roles, [{*one, *other} for one in parts[0] for other in parts[1]], container
    )
    first, second = (
        tuple(roles[name] for name in next(one for one in several if roles.keys() >= {*one}))
        for several in parts
    )
    shapes = {key: container.manifest[key].shape for key in (*first, *second)}
    # The second of LoKr may be a whole kernel.
    kernel = shapes[second[0]][2:] if kronecker and len(second) == 1 else ()
    outer = [(*shapes[names[0]][:1], *shapes[names[-1]][1:2]) for names in (first, second)]
    inner = [shapes[n[0]][1:] + shapes[n[-1]][:1] for n in (first, second) if len(n) > 1]
    plain = (shape for key, shape in shapes.items() if not kernel or key != second[0])
    if (
        any(len(shape) != 2 for shape in plain)
        or len(kernel) not in (0, 2)
        or any(a != b for a, b in inner)
        or not (kronecker or outer[0] == outer[1])
    ):
        raise TensorMismatch(
            "The matrices of a module do not fit each other.",
            evidence={"file": container.path, **{key: list(s) for key, s in shapes.items()}},
            hint="the adapter is damaged, or of a variant that only PEFT merges "
            "(merge_and_unload).",
        )
    (rows, columns), (more_rows, more_columns) = outer
    shape = (rows * more_rows, columns * more_columns, *kernel) if kronecker else outer[0]
    rank = inner[0][0] if inner else config.rank_of(module)
    scale = config.scale_of(module, rank)
    product = Product(first=first, second=second, rank=rank, scale=scale, kronecker=kronecker)
    return product, shape


def _check_roles(
    module: str, roles: Mapping[str, str], known: Sequence[Set[str]], container: Container
) -> None:
    """Make sure that a module has the tensors of its kind, and no others."""
    if roles.keys() not in known:
        raise TensorMismatch(
            "A module of the adapter has not the tensors of its kind.",
            evidence={
                "file": container.path,
                "module": module,
                "tensors": ", ".join(roles.values()),
            },
            hint="the file is incomplete, or of a variant that only PEFT merges "
            "(merge_and_unload).",
        )


def _shape_of_product(
    down: tuple[int, ...], up: tuple[int, ...], *, embedding: bool
) -> tuple[int, ...] | None:
    """The shape of the weight that two matrices are for, or None if they do not fit each other.

    `down` is (r, in) or, of a convolution, (r, in, height, width); `up` is (out, r), with two
    dimensions of 1 for a convolution. Of embeddings the product is transposed: (in, out).
    """
    if len(down) < 2 or len(up) < 2 or up[1] != down[0] or any(n != 1 for n in up[2:]):
        return None
    if len(up) not in (2, len(down)):
        return None
    return (down[1], up[0]) if embedding else (up[0], *down[1:])
