"""The model card of an output: what it is, where it came from, how it was verified, how to load it.

The metadata on top is the Hub's (https://huggingface.co/docs/hub/model-cards), written by hand so
that a conversion need not import the Hub's client.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path, PurePosixPath

from vitconvert.checkpoint import Checkpoint
from vitconvert.conversion.record import Proof, first_source_line, origin_line
from vitconvert.errors import printable, size_text
from vitconvert.formats import TensorInfo
from vitconvert.preprocessing import Preprocessing
from vitconvert.programs.example import vitconvert_example
from vitconvert.programs.program import program_of
from vitconvert.programs.target import Target
from vitconvert.sources.references import published
from vitconvert.version import VERSION

# https://huggingface.co/docs/hub/repositories-licenses, as far as ViTs have them
_LICENSES = (
    *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "openrail", "apple-amlr", "apple-ascl"),
    *("cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0"),
)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norms
_RANDOM = "**Its weights are random: nothing was learned, and its outputs mean nothing.**\n"
_Rows = Sequence[tuple[str, str]]


def write_card(
    directory: Path,
    source: Checkpoint,
    target: Target,
    tensors: Mapping[str, TensorInfo],
    proof: Proof,
) -> None:
    """Tell people and the Hub about an output, in its `README.md`.

    Args:
        directory: The output, with all else that is in it.
        source: What was converted.
        target: The layout that it has.
        tensors: What was written.
        proof: What was found out.
    """
    located, ledger = source.located, source.ledger
    # What the source is called, without the places of one machine.
    stated = located.name or located.repo
    place = published(located.reference).removeprefix("local-dir:") if located.weights else ""
    name = published(stated) if stated else PurePosixPath(place).name or "Vision Transformer"
    reasons = Counter(ledger.ignored.values())
    accounts = [
        ("tensors", ledger.counts),
        *(("assumed", f"{field} {value}") for field, value in ledger.assumed.items()),
        *(("changed", change) for change in ledger.changed),
        *(("ignored", f"{count}: {reason}") for reason, count in reasons.items()),
        *(("note", note) for note in ledger.notes),
    ]
    other = "other outputs than the source's: {} is lossy, as measured above"
    lossy = dict.fromkeys(effect["step"] for effect in ledger.measured)
    proved = [
        *([("function", proof.function_hash)] if proof.function_hash else []),
        ("parity", "\n".join(proof.parity_lines())),
        *(("after it", other.format(step)) for step in lossy),
        *(("opened by", line) for line in proof.opened_lines()),
        *([("sizes", str(proof.other_sizes))] if proof.other_sizes else []),
        *(("images", departure) for departure in proof.departures),
    ]
    has_processor = (directory / "preprocessor_config.json").is_file()
    own_table = "" if target.table.builtin else target.table.origin
    examples = [
        *program_of(target.table).examples(target, source, has_processor),
        vitconvert_example(source.config, source.preprocessing, own_table),
    ]
    uses = (f"{example.title}:\n\n```python\n{example.code}\n```" for example in examples)
    parts = [
        _metadata(source, target),
        f"# `{_plain(name)}`",
        f"A Vision Transformer in the layout of {target.table.title}, written by vitconvert "
        f"{VERSION}.\n{_RANDOM if source.random else ''}"
        "`vitconvert.json` has everything below, and more, for programs.",
        "## Model",
        _table(_model(source, target, tensors)),
        "## Source",
        _block(_origin(source, proof.sha256_in)),
        "## Assumed, changed, ignored",
        _block(accounts),
        "## Parity",
        _block(proved),
        "## Use",
        *uses,
    ]
    (directory / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8", newline="\n")


def _metadata(source: Checkpoint, target: Target) -> str:
    config, programs = source.config, tuple(program_of(target.table).openers(source.config))
    # A projection, as CLIP's, is a head without a bias.
    classifies = config.num_classes and config.head_bias
    task = "image-classification" if classifies else "image-feature-extraction"
    if source.config.clips:  # the Hub has no name for features of clips
        task = "video-classification" if classifies else "feature-extraction"
    loaded = source.loaded
    stated: dict[str, str | None] = {
        "library_name": programs[0] if programs else "vitconvert",
        "pipeline_tag": "zero-shot-image-classification" if source.text else task,
        "base_model": source.located.repo or (loaded.source.get("repo") if loaded else None),
    }
    record = source.their_config.get("pretrained_cfg")
    licence = record.get("license") if isinstance(record, dict) else None
    if isinstance(licence, str) and _LICENSE.fullmatch(licence.lower()):
        name = licence.lower()
        other = {"license": "other", "license_name": name}
        stated = {**({"license": name} if name in _LICENSES else other), **stated}
    # A JSON string of ASCII is a quoted YAML scalar, whatever it holds.
    lines = [f"{key}: {json.dumps(value)}" for key, value in stated.items() if value]
    tags = [f"- {json.dumps(tag)}" for tag in (*programs, "vitconvert", "vision-transformer")]
    return "\n".join(["---", *lines, "tags:", *tags, "---"])


def _model(source: Checkpoint, target: Target, tensors: Mapping[str, TensorInfo]) -> _Rows:
    config, theirs = source.config, target.their_config
    called = theirs.get("architecture") or ", ".join(theirs.get("architectures", ()))
    learned = [info for name, info in tensors.items() if not name.endswith(_STATISTICS)]
    count = sum(prod(info.shape) for info in learned)
    kind = "classes" if config.head_bias else "features, projected"
    if config.stated_problem:
        function = "no" if config.score_function == "none" else config.score_function
        kind += f" ({config.stated_problem}: {function} function of the logits)"
    apart = f", {size_text(config.patch_stride)} apart" if config.patch_stride else ""
    return [
        *([("architecture", f"`{_plain(str(called))}`")] if called else []),
        ("parameters", f"{count:,}, {', '.join(sorted({info.dtype for info in learned}))}"),
        (
            "blocks",
            f"{config.depth}, of width {config.embed_dim}, {config.num_heads} heads of "
            f"{config.head_dim}, MLPs of {config.mlp_dim}",
        ),
        (
            "clips" if config.clips else "images",
            f"{f'{config.frames} frames of ' if config.clips else ''}"
            f"{size_text(config.image_size)} pixels, {config.in_channels} channels, patches of "
            f"{size_text(config.tubelet_size if config.clips else config.patch_size)}"
            f"{' of a stem' if config.stem else apart}",
        ),
        ("arithmetic", f"{config.activation}, {config.norm} norms with eps {config.norm_eps:g}"),
        ("pooling", config.pooling),
        ("output", f"{config.num_classes} {kind}" if config.num_classes else "pooled features"),
        ("preprocessing", _preprocessing(source.preprocessing)),
        *([("texts", str(source.text.config))] if source.text else []),
    ]


def _preprocessing(stated: Preprocessing | None) -> str:
    if stated is None:
        return "unknown"
    filter_ = "" if stated.resize == "none" else f" ({stated.filtering})"
    crop = f", middle {size_text(stated.image_size)}" if stated.cuts else ""
    mean, std = (", ".join(f"{v:g}" for v in values) for values in (stated.mean, stated.std))
    scale = f", over {1 / stated.rescale_factor:g}" if stated.rescale_factor else ""
    opened = "" if stated.of_sounds else f"{stated.opening}; "
    return f"{opened}{stated.resizing}{filter_}{crop}{scale}, mean {mean}, std {std}"


def _origin(source: Checkpoint, sha256_in: Mapping[str, str]) -> _Rows:
    located, loaded = source.located, source.loaded
    again = loaded is not None and loaded.first_source == loaded.source
    where = [
        ("model", "in memory" if not located.weights else None),
        ("loaded", loaded and origin_line(loaded.source)),
        ("repository", located.repo),
        ("revision", located.revision),
        ("address", located.url and published(located.url)),
        ("vision encoder", source.tower and f"of a larger model: {source.tower}"),
        ("dialect", source.dialect),
        ("converted", "" if again else first_source_line(source)),
    ]
    return [
        *((title, text) for title, text in where if text),
        *(("sha256", f"{digest}  {printable(name)}") for name, digest in sha256_in.items()),
        *(("as published", name) for name in located.verified),
        *([("fetched", str(located.fetched))] if located.fetched else []),
    ]


def _table(rows: _Rows) -> str:
    cells = [f"| {title} | {printable(text.replace('|', ' '))} |" for title, text in rows]
    return "\n".join(["| | |", "|---|---|", *cells])


def _block(rows: _Rows) -> str:
    """Aligned lines that mean nothing to Markdown, whatever names they hold."""
    width = max(len(title) for title, _ in rows) + 2
    lines = []
    for title, text in rows:
        first, *rest = map(printable, text.split("\n"))
        lines += [f"{title:<{width}}{first}", *(f"{'':<{width}}{line}" for line in rest)]
    text = "\n".join(lines)
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _plain(text: str) -> str:
    """One line that may stand in a code span, or in a table."""
    return printable(re.sub(r"\s+", " ", re.sub(r"[`|<>]", "'", text)))
