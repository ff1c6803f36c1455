"""The command line: arguments in, text and an exit code out.

Each verb is a module of its own that is imported when it is used, so that `vitconvert --help`
answers at once.
"""

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence

import click

from vitconvert.cli.errors import run

# verb -> its module and help text, in the order of a newcomer's questions.
VERBS = {
    "demo": ("demo", "Show everything on a tiny ViT that ships with the package, offline."),
    "timm": ("convert", "Convert a timm model: NAME, Hub repository or files."),
    "hf": ("convert", "Convert what transformers or KerasHub saved: REPO or directory."),
    "jax": ("convert", "Convert Google's or big_vision's .npz: NAME or FILE."),
    "jeonsworld": ("convert", "Convert a state dict of jeonsworld's ViT-pytorch."),
    "lucidrains": ("convert", "Convert a state dict of lucidrains' vit-pytorch."),
    "torchvision": ("convert", "Convert a torchvision ViT: NAME or FILE."),
    "openclip": ("convert", "Convert the image tower of an OpenCLIP or OpenAI CLIP file."),
    "dino": ("convert", "Convert Meta's DINO, DINOv2 or DINOv3: NAME or FILE."),
    "file": ("convert", "Convert any checkpoint; its dialect is detected."),
    "inspect": ("inspect", "Say what a checkpoint is, from its header alone."),
    "diff": ("diff", "Say how two checkpoints, of any dialects, differ."),
    "verify": ("verify", "Compare a checkpoint with its own project's implementation."),
    "golden": ("golden", "Record what a checkpoint computes, for comparisons anywhere."),
    "predict": ("predict", "Classify images."),
    "embed": ("embed", "Compute the features of images."),
    "attention": ("attention", "Show what a model attends to in images."),
    "table": ("table", "Draft a table for a spelling that nobody knows, by a ViT that is known."),
    "export": ("export", "Write a file for ONNX Runtime, OpenVINO or torch.export."),
    "push": ("push", "Publish a converted model on the Hugging Face Hub."),
    "list": ("listing", "List dialects and named architectures."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of VERBS."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"vitconvert.cli.{VERBS[cmd_name][0]}")
        command: click.Command = module.command(cmd_name, VERBS[cmd_name][1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but the error for an unknown verb names the nearest one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from vitconvert.errors import UsageError, nearest

            near = nearest(args[0], VERBS)
            raise UsageError(
                f"There is no verb {args[0]!r}.",
                hint=f"did you mean `vitconvert {near[0]}`?"
                if near
                else "`vitconvert --help` lists them; `vitconvert file PATH` converts a file.",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 error, 2 usage, 3 parity failed or (diff) different, "
    "4 refused as unsafe, 5 not representable in the target, 130 interrupted.",
)
@click.version_option(package_name="vitconvert")
def vitconvert() -> None:
    """Make any pretrained Vision Transformer checkpoint usable anywhere, provably unchanged."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        arguments = sys.argv[1:]
        _collect_rarely(arguments)
        _wait_asleep(arguments)
    sys.exit(run(vitconvert, list(arguments)))


def _collect_rarely(arguments: Sequence[str]) -> None:
    """Collect garbage rarely during imports, and not at exit.

    Importing torch makes hundreds of thousands of objects that stay. Searching them for garbage
    takes 0.5 of the 1.7 seconds of a process that does nothing else (Python 3.11, torch 2.15).
    """
    gc.set_threshold(100_000, 50, 100)
    # Packages of other verbs, and of other runtimes, complain on stderr if garbage is left.
    others = any(argument.startswith("--runtime") for argument in arguments)
    if arguments[:1] in (["predict"], ["embed"], ["attention"]) and not others:
        atexit.register(gc.freeze)


def _wait_asleep(arguments: Sequence[str]) -> None:
    """Where others compute, let torch's threads sleep while they wait for one another.

    By default they spin (OpenMP 5.2, OMP_WAIT_POLICY), and so keep the thread that they wait for
    from its processor: on two processors that five others wanted, a tiny ViT classified 2 images
    a second, and 45 with this. torch reads the variable when it is imported.
    """
    if arguments[:1] not in (["predict"], ["embed"]):
        return
    from vitconvert.machine import busy

    if busy():
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
