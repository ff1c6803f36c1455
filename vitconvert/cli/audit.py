"""`vitconvert verify MODEL --audit`."""

from typing import TYPE_CHECKING, Any

import click

from vitconvert.cli.options import (
    Command,
    apply_options,
    locate_options,
    parse_reading,
    refuse_given,
)

if TYPE_CHECKING:
    from vitconvert.parity.audit_report import AuditReport

_AUDIT = (
    click.option(
        "--audit",
        is_flag=True,
        help="Measure how far half precision and faster arithmetic are from float64, layer by "
        "layer. Nothing is judged: the exit code is 0 if float32 gives finite numbers.",
    ),
    click.option(
        "--without",
        multiple=True,
        metavar="ARITHMETIC",
        help="With --audit: leave out bfloat16, float16, fast, compiled (which takes most of the "
        "time) or onnxruntime. May be repeated.",
    ),
)
# What compares with something else.
_OTHERS = {"against": "--against", "module": "--module", "layers": "--layer"}
_OTHERS |= {"gradients": "--gradients", "images": "--images"}


def audit_options(command: Command) -> Command:
    """Options of an audit."""
    return apply_options(_AUDIT, command)


def audit_model(options: dict[str, Any]) -> "AuditReport":
    """Measure, as the options say."""
    from vitconvert.api import audit, load_checkpoint
    from vitconvert.errors import UsageError
    from vitconvert.sources import locate

    if asked := [option for name, option in _OTHERS.items() if options[name]]:
        raise UsageError(f"--audit compares MODEL with itself in float64, not with {asked[0]}.")
    refuse_given(["tolerance"], "judges, and --audit only measures")
    located = locate(options["model"], **locate_options(options))
    checkpoint = load_checkpoint(located, **parse_reading(options))
    return audit(checkpoint, seed=options["seed"], without=options["without"])
