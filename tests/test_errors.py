"""Messages of errors: all lines when asked for, and at most five after the code otherwise."""

import pytest

from vitconvert.errors import CorruptFile, OtherFunction

EVIDENCE = {"command": "vitconvert", "file": "a.pth", "reason": "1\n    2\n    3", "size": 7}


@pytest.mark.parametrize("evidence", range(5))
@pytest.mark.parametrize("details", range(4))
@pytest.mark.parametrize("meaning", [None, "It means."])
@pytest.mark.parametrize("hint", [None, "do."])
def test_a_brief_message_has_five_lines_and_counts_the_rest(evidence, details, meaning, hint):
    error = CorruptFile(
        "It is broken.",
        evidence=dict(list(EVIDENCE.items())[:evidence]),
        details=[f"detail {n}" for n in range(details)],
        meaning=meaning,
        hint=hint,
    )
    code, fact, *rest = error.text(brief=True).splitlines()
    whole = str(error).splitlines()[2:]
    assert (code, fact) == ("error: corrupt-file", "  It is broken.")
    assert len(rest) <= 4
    assert ("command" in str(error)) == any(line.startswith("  command") for line in rest)
    assert (details > 0) == any(line.startswith("  detail 0") for line in rest)
    assert not hint or rest[-1] == "  hint: do."
    if len(whole) <= 4:
        assert rest == whole
    else:
        (counted,) = [line for line in rest if line.endswith(" more (-v)")]
        assert f", and {len(whole) - len(rest)} more (-v)" in counted
    assert error.text(brief=True, verbose=True) == str(error)


def test_a_line_that_names_the_option_says_so_once():
    error = OtherFunction("It is.", evidence={"others": "21; -v lists them"}, details=list("abcde"))
    error.folded = True
    assert error.text(brief=True).endswith("  others  21; -v lists them")
    found = {"others": "21; -v lists them", "a": "b", "c": "d", "e": "f"}
    text = OtherFunction("It is.", evidence=found, meaning="So.", hint="do.").text(brief=True)
    assert text.splitlines()[2:4] == ["  others  21; -v lists them", "  a       b, and 2 more (-v)"]
