"""The command line: arguments in, text and an exit code out.

Each verb is a class in a module of its own that is imported when it is used, so that
`vitconvert --help` answers at once.
"""

import importlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from vitconvert.errors import UsageError, VitConvertError, VitConvertWarning, as_flags, nearest
from vitconvert.programs import fast_imports

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_COMMAND = re.compile(r"`[^`]*`")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
# Options of earlier versions -> what to do today.
_GONE = {
    "--audit": "`verify MODEL --dtypes float16,bfloat16` measures lower precision.",
    "--gradients": "torch.autograd.grad of both models, in Python, compares gradients.",
}


# Heading of the help -> verb -> its module, its class there, and its line; the commonest first.
GROUPS = {
    "Convert": {
        "convert": (
            "convert:ConvertTimm",
            "Convert a checkpoint: PATH, timm:NAME, hf:ORG/REPO, jax:NAME.",
        ),
        "timm": ("convert:ConvertTimm", "Short for convert timm:NAME; repositories and files too."),
        "export": ("export:Export", "Write a file for ONNX Runtime, OpenVINO or torch.export."),
        "push": ("push:Push", "Publish a converted model on the Hugging Face Hub."),
    },
    "Examine": {
        "inspect": ("inspect:Inspect", "Show what a checkpoint is, from its header."),
        "diff": ("diff:Diff", "Show how two checkpoints differ, in any dialects."),
        "list": ("listing:List", "List dialects and named architectures."),
        "table": (
            "table:DraftTable",
            "Draft a table for a layout that no table explains, by a known ViT.",
        ),
    },
    "Verify": {
        "audit": ("audit:Audit", "Show whether a checkpoint's weights arrived in a loaded model."),
        "verify": ("verify:Verify", "Compare a checkpoint with its library's implementation."),
        "golden": (
            "golden:RecordGolden",
            "Record what a checkpoint computes, for comparisons anywhere.",
        ),
        "demo": ("demo:Demo", "Show everything on a tiny ViT that ships with the package."),
    },
    "Use": {
        "predict": ("predict:Predict", "Classify images."),
        "embed": ("embed:Embed", "Compute the features of images."),
        "attention": ("attention:ShowAttention", "Show what a model attends to in images."),
    },
}
# Short for `convert VERB:SOURCE`, which the help does not list.
SHORT_FORMS = {
    "hf": ("convert:Convert", "Convert what transformers or KerasHub saved: REPO or directory."),
    "jax": ("convert:Convert", "Convert Google's or big_vision's .npz: NAME or FILE."),
    "jeonsworld": ("convert:Convert", "Convert a state dict of jeonsworld's ViT-pytorch."),
    "lucidrains": ("convert:Convert", "Convert a state dict of lucidrains' vit-pytorch."),
    "torchvision": ("convert:Convert", "Convert a torchvision ViT: NAME or FILE."),
    "openclip": ("convert:Convert", "Convert the vision encoder of an OpenCLIP or CLIP file."),
    "dino": ("convert:Convert", "Convert Meta's DINO, DINOv2 or DINOv3: NAME or FILE."),
    "file": ("convert:Convert", "Convert a file or directory."),
}
VERBS = {verb: place for verbs in (*GROUPS.values(), SHORT_FORMS) for verb, place in verbs.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs that the help lists, in its order."""
        return [verb for verb in VERBS if verb not in SHORT_FORMS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name not in VERBS:
            return None
        from vitconvert.cli.options import VerbCommand

        place, about = VERBS[cmd_name]
        module, name = place.split(":")
        verb = getattr(importlib.import_module(f"vitconvert.cli.{module}"), name)
        return VerbCommand(verb, cmd_name, about)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but the error for an unknown verb names the nearest one."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = [f"`vitconvert {verb}`" for verb in nearest(args[0].lower(), VERBS, 3)]
            raise UsageError(
                f"There is no command {args[0]!r}.",
                hint=f"did you mean {' or '.join(near)}?"
                if near
                else "`vitconvert --help` lists them; `vitconvert convert PATH` converts a file.",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any, so that all fit on a screen."""
        longest = max(len(verb) for verbs in GROUPS.values() for verb in verbs)
        for heading, verbs in GROUPS.items():
            formatter.write(f"{heading}:\n")
            for verb, (_, about) in verbs.items():
                formatter.write(f"  {verb:{longest}}  {about}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs, then the few options in a line."""
        formatter.write("\n")
        self.format_commands(ctx, formatter)
        formatter.write("Options: -h, --help; -V, --version; --completion bash|zsh|fish\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the exit codes mean, without a line between."""
        formatter.write_text(str(self.epilog))


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is None:
        return
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # one of the choices
    program = str(ctx.info_name)
    click.echo(kind(ctx.command, {}, program, f"_{program.upper()}_COMPLETE").source())
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 error, 2 usage, 3 parity failed, (diff) different, (audit) lost, "
    "4 unsafe file, 5 not representable in the target, 130 interrupted.",
)
@click.version_option(None, "-V", "--version", package_name="vitconvert")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    expose_value=False,
    is_eager=True,
    callback=_print_completion,
    help="Print the completion script of a shell and exit.",
)
def vitconvert() -> None:
    """Convert any pretrained ViT to any library, and verify that outputs stay equal."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is not None:
        sys.exit(run(vitconvert, list(arguments)))
    _prepare(sys.argv[1:])
    fast_imports.end(run(vitconvert, sys.argv[1:]))


def _prepare(arguments: Sequence[str]) -> None:
    """Set up a process that does nothing but run this command line."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who started the process: the work is done all the same
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):  # names that its encoding lacks are escaped
            stream.reconfigure(errors="backslashreplace")
    fast_imports.collect_seldom()
    if VERBS.get(next(iter(arguments), ""), [""])[0].startswith("convert:"):
        fast_imports.import_leanly()
    if arguments[:1] in (["predict"], ["embed"]):
        from vitconvert.machine import busy

        # Where others compute, let torch's threads sleep while they wait for one another. By
        # default they spin (OpenMP 5.2, OMP_WAIT_POLICY), and so keep the thread that they wait for
        # from its processor: on two processors that five others wanted, a tiny ViT classified 2
        # images a second, and 45 with this. torch reads the variable when it is imported.
        if busy():
            os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def run(command: click.Command, arguments: list[str]) -> int:
    """Run a command and return its exit code; a user's mistake is a message, never a traceback."""
    as_json = "--json" in arguments
    try:
        with _warnings_as_notes(quiet="-q" in arguments):
            code = command.main(arguments, prog_name="vitconvert", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except VitConvertError as error:
        if error.hint:
            error.hint += _where_it_is_an_option(error.hint, command, arguments)
        verbose = not {"-v", "--verbose"}.isdisjoint(arguments)
        return _report(error, as_json=as_json, verbose=verbose)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()  # `vitconvert` alone: the help
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "vitconvert"
        hint = f"`{path} --help` says what may be typed."
        if isinstance(error, click.NoSuchOption):
            elsewhere = _where_it_is_an_option(error.option_name, command, arguments)
            error = _named_setting(error)
            if elsewhere:
                error, hint = click.UsageError(error.message, context), elsewhere.strip()
        if context and "unexpected extra argument" in error.format_message():
            several = (one for one in context.command.params if getattr(one, "multiple", False))
            given = [flag for one in several for flag in one.opts if flag in arguments]
            hint = f"{given[0]} takes one: type it before each. {hint}" if given else hint
        if near := _nearest_choices(error):
            hint = f"did you mean {' or '.join(near)}?"
        usage = UsageError(error.format_message(), hint=hint)
        return _report(usage, as_json=as_json)
    except OSError as error:
        from vitconvert.cli.report import reader_is_gone, refused_by_system, silence

        if reader_is_gone(error):
            silence()  # nobody would see a message
            return 1
        return _report(refused_by_system(error), as_json=as_json)


@contextmanager
def _warnings_as_notes(*, quiet: bool) -> Iterator[None]:
    """What Python callers get as warnings of ours are notes on stderr here, each of them once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "default", VitConvertWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, VitConvertWarning):
                click.echo(f"note: {as_flags(str(message))}", err=True)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _report(error: VitConvertError, *, as_json: bool, verbose: bool = False) -> int:
    from vitconvert.cli.report import Verdict, tell

    if as_json:
        with suppress(OSError):  # as stdout is full, stderr gets the message
            # One line, because verbs may have printed lines of JSON before.
            click.echo(json.dumps({"ok": False, "error": error.to_dict()}))
            return error.exit_code
    with suppress(OSError):
        tell(Verdict(error.text(verbose=verbose, brief=True), ok=False), err=True)
    return error.exit_code


def _where_it_is_an_option(hint: str, verbs: click.Command, arguments: Sequence[str]) -> str:
    """What a hint names and this verb lacks, and a verb that has it; "" if it lacks nothing."""
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if not isinstance(verbs, click.Group):
        return ""
    context = click.Context(verbs)

    def options(name: str) -> set[str]:
        found = verbs.get_command(context, name)
        parameters = found.params if found else []
        return {flag for one in parameters for flag in (*one.opts, *one.secondary_opts)}

    named = dict.fromkeys(_FLAG.findall(_COMMAND.sub("", hint)))
    if not verb or not (lacking := [flag for flag in named if flag not in options(verb)]):
        return ""
    every = VERBS  # convert comes first: a conversion's output needs the fewest options
    other = next((name for name in every if options(name).issuperset(lacking)), None)
    if other is None:
        return ""
    first = ": convert first, and name its output here" if "--to" in options(other) else ""
    return (
        f" `vitconvert {verb}` has no {' and no '.join(lacking)}; `vitconvert {other}` has{first}."
    )


def _nearest_choices(error: click.ClickException) -> list[str]:
    """The three choices of an option that are nearest to what was typed in its place."""
    choices = getattr(getattr(error, "param", None), "type", None)
    typed = re.search(r"'([^']*)' is not one of", error.format_message())
    if typed is None or not isinstance(choices, click.Choice):
        return []
    # As many write dtypes: fp16, bf16.
    word = re.sub(r"^(b?)fp?(?=\d)", r"\1float", typed[1].lower())
    return nearest(word, map(str, choices.choices), 3)


def _named_setting(error: click.NoSuchOption) -> click.UsageError:
    """A fact of the model is no option of its own, as many expect: --set states it."""
    from vitconvert.config import field_names

    if instead := _GONE.get(error.option_name):
        return click.UsageError(f"{error.message} {instead}", error.ctx)
    field = error.option_name.lstrip("-").replace("-", "_")
    options = error.ctx.command.params if error.ctx is not None else []
    if field not in field_names() or not any("--set" in option.opts for option in options):
        return error
    return click.UsageError(f"{error.message} Did you mean '--set {field}=...'?", error.ctx)
