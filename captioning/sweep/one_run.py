"""One run of a sweep, in one process: trained, then captioned and scored on the test split.

python -m captioning.sweep.one_run --config CONFIG --output_dir DIR [key=value ...]

The arguments are those of captioning.train, which it calls twice; Python starts once.
"""

import sys
from collections.abc import Sequence
from typing import Optional

from captioning import train
from captioning.runtime import signals

STOPPED = 3  # exit code: it saved, and has more to do


def main(argv: Optional[Sequence[str]] = None) -> int:
    """0 when both are done, STOPPED when it was asked to stop, else what captioning.train said."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    evaluation = [*without_pretrained(arguments), "--evaluate", "--eval_split", "test"]
    for program in (arguments, evaluation):
        code = train.main(program)
        if code != 0:
            return code
        if signals.stop_requested():
            return STOPPED
    return 0


def without_pretrained(arguments: Sequence[str]) -> list[str]:
    """In evaluation it would name the weights to caption with, instead of the run's best."""
    return [argument for argument in arguments if not argument.startswith("pretrained=")]


if __name__ == "__main__":
    sys.exit(main())
