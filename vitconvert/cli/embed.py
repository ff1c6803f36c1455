"""`vitconvert embed MODEL IMAGE... -o FILE`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vitconvert.cli.images import ABOUT_IMAGES
from vitconvert.cli.options import Reporting, flag, flags_of, output_flag
from vitconvert.cli.report import tell
from vitconvert.cli.scale import (
    Scaled,
    compute_shards,
    is_directory,
    report_check,
    require_directory,
)
from vitconvert.embedding.options import RunOptions
from vitconvert.inference.options import FeatureOptions, computed_features


@dataclass(kw_only=True)
class Embed(Scaled):
    """Computes the features of images."""

    heading = Reporting.heading
    details = f"""{ABOUT_IMAGES}
An .npz has the arrays "features" and "paths", a .safetensors the tensor "features" and the paths
in its metadata, a .jsonl a line for each image. An image that cannot be read is reported on stderr
and left out; the exit code is then 1.

A directory is for any number of images: Parquet files of features, each written whole. IMAGES may
then also be tars of WebDataset, Parquet files with images, and URLs such as s3://bucket/photos. The
same command goes on after an interruption.
"""

    output: str | None = output_flag(
        "A directory, or .npz, .safetensors or .jsonl; without it, lines of JSON on stdout."
    )
    tokens: bool = flag("All tokens instead of the pooled features.", default=False)
    projected: bool = flag(
        "CLIP's projection of the pooled features, for comparison with texts.", default=False
    )
    which: Mapping[str, Any] = flags_of(FeatureOptions)
    force: bool = flag("Replace an earlier file of features.", default=False)
    course: Mapping[str, Any] = flags_of(RunOptions, heading=Scaled.heading)

    def run(self) -> int:
        if self.check:
            return report_check(self)
        self.require_arguments()
        self.tell_begin()
        from vitconvert.api import embed
        from vitconvert.inference.embed import Features
        from vitconvert.inference.embedding_files import SUFFIXES, check_output, write_embeddings

        computed = computed_features(tokens=self.tokens, projected=self.projected)
        if self.output and is_directory(self.output, SUFFIXES):
            return compute_shards(self, computed)
        require_directory(self.images, self.output)
        place = Path(self.output or "")
        if self.output:
            check_output(place, overwrite=self.force)
        which = FeatureOptions(**self.which)
        which.check(computed, self.compute["runtime"], self.dtype)
        checkpoint = self.load_checkpoint()
        if not (which.asked or self.quiet):
            for note in checkpoint.read_by_larger:
                others = "--layer N and --pool cls, mean, cls_mean, patches or tokens take others"
                tell(f"note: {note}; {others}", err=True)
        embeddings = embed(
            checkpoint,
            self.named_images(),
            tokens=self.tokens,
            projected=self.projected,
            **self.which,
            **self.computing(),
        )
        clips = checkpoint.config.clips
        results = self.reported(embeddings, printing=not self.output, clips=clips)
        if not self.output:
            for embedding in results:
                click.echo(json.dumps(embedding.to_dict()))
            return self.exit_code
        written = write_embeddings(place, results, overwrite=self.force)
        if self.quiet:
            pass
        elif written is None:
            tell(f"There are no features, so {place} is not written.", err=True)
        else:
            features = Features.of(checkpoint.config, computed, which).in_words()
            count = f"{written} {'clip' if clips else 'image'}{'s' * (written != 1)}"
            tell(f"{count} in {place}", *([features] if written else []), err=True)
        return self.exit_code
