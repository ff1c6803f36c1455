"""`vitconvert embed MODEL IMAGE... -o FILE`."""

import json
from pathlib import Path
from typing import Any

import click

from vitconvert.cli import photographs, scale
from vitconvert.cli.options import GroupedCommand, named_output
from vitconvert.cli.photographs import (
    FailureCount,
    named_checkpoint,
    named_images,
    photograph_options,
    reported,
    require_arguments,
    shared_arguments,
)
from vitconvert.cli.report import tell
from vitconvert.cli.scale import (
    compute_shards,
    is_directory,
    report_check,
    require_directory,
    scale_options,
)
from vitconvert.errors import UsageError

_HELP = """{summary}

IMAGES are files, folders, quoted patterns ("photos/**/*.jpg"), or - for a list of paths on stdin.
An .npz has the arrays "features" and "paths", a .safetensors the tensor "features" and the paths
in its metadata, a .jsonl a line for each image. An image that cannot be read is reported on stderr
and left out; the exit code is then 1.

A directory is for any number of images: Parquet files of features, each written whole. IMAGES may
then also be tars of WebDataset, Parquet files with images, and URLs such as s3://bucket/photos. The
same command goes on after an interruption.
"""

_GROUPS = {
    "What comes out": ("output", "tokens", "projected", "force", "as_json", "quiet"),
    **scale.GROUPS,
    **photographs.GROUPS,
}


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(
        name,
        cls=GroupedCommand,
        groups=_GROUPS,
        help=_HELP.format(summary=help_text),
        short_help=help_text,
    )
    @click.option(
        "-o",
        "--output",
        callback=named_output,
        help="A directory, or .npz, .safetensors or .jsonl; without it, lines of JSON on stdout.",
    )
    @click.option("--tokens", is_flag=True, help="All tokens instead of the pooled features.")
    @click.option(
        "--projected",
        is_flag=True,
        help="CLIP's projection of the pooled features, for comparison with texts.",
    )
    @click.option("--force", is_flag=True, help="Replace an earlier file of features.")
    @click.option(
        "--store",
        type=click.Choice(["float32", "float16"]),
        default="float32",
        show_default=True,
        help="Numbers of features.",
    )
    @scale_options
    @photograph_options
    def embed(**options: Any) -> int:
        return _embed(options)

    return embed


def _embed(options: dict[str, Any]) -> int:
    from vitconvert.api import embed
    from vitconvert.inference.embed import in_words, shape_of
    from vitconvert.inference.embedding_files import SUFFIXES, check_output, write_embeddings

    if options["check"]:
        return report_check(options)
    require_arguments(options)
    if options["output"] and is_directory(options["output"], SUFFIXES):
        return compute_shards(options, _computed(options))
    require_directory(options["output"])
    output, failures = Path(options["output"] or ""), FailureCount()
    if options["output"]:
        check_output(output, overwrite=options["force"])
    checkpoint = named_checkpoint(options)
    embeddings = embed(
        checkpoint,
        named_images(options),
        tokens=options["tokens"],
        projected=options["projected"],
        **shared_arguments(options, checkpoint),
    )
    results = reported(embeddings, options, failures, printing=not options["output"])
    if options["output"]:
        written = write_embeddings(output, results, overwrite=options["force"])
        if not options["quiet"]:
            shape = shape_of(checkpoint.config, _computed(options))
            tell(_report(written, output) + (in_words(shape) if written else ""), err=True)
    else:
        for embedding in results:
            click.echo(json.dumps(embedding.to_dict()))
    return failures.exit_code


def _computed(options: dict[str, Any]) -> str:
    if options["tokens"] and options["projected"]:
        raise UsageError(
            "Only pooled features can be projected, not tokens.",
            hint="ask for tokens or for projected features, not for both.",
        )
    return "tokens" if options["tokens"] else "projected" if options["projected"] else "features"


def _report(written: int | None, output: Path) -> str:
    if written is None:
        return f"There are no features, so {output} is not written."
    return f"{written} images in {output}"
