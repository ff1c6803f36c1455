"""The kinds of `fuzz`, changed further wherever that reaches new lines of the readers.

    pip install atheris
    python -m tests.hostile.guided torch -max_total_time=600

atheris (libFuzzer) keeps what reached something new and changes that again; what is judged, and the
changes themselves, are those of `fuzz`. It stops at the first bad case and writes it to a file.
The package is not a dependency: it has wheels for few systems.
"""

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["vitconvert"]):
    from tests.hostile.fuzz import OTHER_REFUSES, judge
    from tests.hostile.kinds import kinds, prepare
    from tests.hostile.mutations import mutated_bytes


def main() -> None:
    name, *options = sys.argv[1:]
    kind = kinds()[name]
    folder = Path(tempfile.mkdtemp(prefix="guided-"))
    prepare(name, folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    place, base = kind.bases[0]
    for number, (_, sound) in enumerate(kind.bases):
        (corpus / str(number)).write_bytes(sound)

    def one(data: bytes) -> None:
        verdict = judge(name, folder, place, base, data)
        # What was sound before is not known after several changes, so it cannot be compared with.
        if verdict not in ("refused", "equal") and not verdict.startswith(OTHER_REFUSES):
            raise AssertionError(verdict)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        try:
            changed = kind.mutated(data, random)
        except Exception:  # it takes apart what was sound; this is not any more
            changed = mutated_bytes(data, random)
        return changed[:most]

    arguments = [sys.argv[0], str(corpus), "-max_len=100000", "-rss_limit_mb=4096", *options]
    atheris.Setup(arguments, one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
