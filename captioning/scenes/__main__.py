"""Draw a small captioned world.

python -m captioning.scenes --output data/scenes --seed 0
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.runtime.errors import UserError
from captioning.scenes.make import make_scenes


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m captioning.scenes", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("data/scenes"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    try:
        drawn = make_scenes(arguments.output, arguments.seed)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.output} {'is drawn' if drawn else 'is there already'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
