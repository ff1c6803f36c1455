"""`vitconvert embed MODEL IMAGE... -o FILE`."""

import json
from pathlib import Path
from typing import Any

import click

from vitconvert.cli.photographs import (
    FailureCount,
    named_checkpoint,
    named_images,
    photograph_options,
    reported,
    shared_arguments,
)
from vitconvert.cli.report import tell

_HELP = """{summary}

IMAGES are files, folders, quoted patterns ("photos/**/*.jpg"), or - for a list of paths on stdin.
An .npz has the arrays "features" and "paths", a .safetensors the tensor "features" and the paths
in its metadata, a .jsonl a line for each image. An image that cannot be read is reported on stderr
and left out; the exit code is then 1.
"""


def command(name: str, help_text: str) -> click.Command:
    """The command."""

    @click.command(name, help=_HELP.format(summary=help_text), short_help=help_text)
    @click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help=".npz, .safetensors or .jsonl; without it, lines of JSON on stdout.",
    )
    @click.option("--tokens", is_flag=True, help="All tokens instead of the pooled features.")
    @click.option(
        "--projected",
        is_flag=True,
        help="CLIP's projection of the pooled features, for comparison with texts.",
    )
    @click.option("--force", is_flag=True, help="Replace the output if it exists.")
    @photograph_options
    def embed(**options: Any) -> int:
        return _embed(options)

    return embed


def _embed(options: dict[str, Any]) -> int:
    from vitconvert.api import embed
    from vitconvert.inference.embedding_files import check_output, write_embeddings

    output, failures = options["output"], FailureCount()
    if output:
        check_output(output, overwrite=options["force"])
    checkpoint = named_checkpoint(options)
    embeddings = embed(
        checkpoint,
        named_images(options),
        tokens=options["tokens"],
        projected=options["projected"],
        **shared_arguments(options, checkpoint),
    )
    results = reported(embeddings, options, failures, printing=output is None)
    if output:
        written = write_embeddings(output, results)
        if not options["quiet"]:
            tell(_report(written, output), err=True)
    else:
        for embedding in results:
            click.echo(json.dumps(embedding.to_dict()))
    return failures.exit_code


def _report(written: int | None, output: Path) -> str:
    if written is None:
        return f"There are no features, so {output} is not written."
    return f"{written} images in {output}"
