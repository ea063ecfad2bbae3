"""Make a small data set of drawn scenes with captions.

python -m captioning.scenes --output data/scenes --seed 0
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line
from captioning.scenes import paragraphs
from captioning.scenes.make import SPLITS, make_scenes


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("python -m captioning.scenes", __doc__)
    parser.add_argument("--output", type=Path, default=Path("data/scenes"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paragraphs", action="store_true", help="captions of 100 to 200 words")
    arguments = parser.parse_args(argv)

    def program():
        splits = paragraphs.SPLITS if arguments.paragraphs else SPLITS
        made = make_scenes(arguments.output, arguments.seed, splits, arguments.paragraphs)
        log_line(f"{arguments.output} {'is drawn' if made else 'exists already'}")

    return run_program(program, "stopped")


if __name__ == "__main__":
    sys.exit(main())
