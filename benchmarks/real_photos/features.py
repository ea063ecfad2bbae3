"""What a configuration's encoder makes of all photos, kept once for all runs.

python -m benchmarks.real_photos.features PART PARTS --config CONFIG [key=value ...]
"""

import sys
from collections.abc import Sequence
from typing import Optional

import torch

from benchmarks.real_photos.parts import SPLITS
from captioning import train
from captioning.config import load_config
from captioning.data import Prefetcher, read_split
from captioning.models.build import captioner_from
from captioning.models.generation import images_of
from captioning.runtime.program import exit_code
from captioning.runtime.progress import progress


def main(argv: Optional[Sequence[str]] = None) -> int:
    part, parts, *rest = sys.argv[1:] if argv is None else argv
    arguments = train.parse_arguments(rest)
    return exit_code(lambda: _keep(arguments, int(part), int(parts)), "stopped")


@torch.no_grad()
def _keep(arguments, part: int, parts: int) -> None:
    config = load_config(arguments.config, arguments.overrides)
    captioner, _ = captioner_from(config, None)
    captioner.train()  # in which features are kept
    samples = [sample for split in SPLITS for sample in read_split(config, split)][part::parts]
    with progress(len(samples), "features") as bar:
        for batch in Prefetcher(images_of(samples, config)[0], torch.device("cpu")):
            captioner.encode(batch["image"])
            bar.update(len(batch["index"]))


if __name__ == "__main__":
    sys.exit(main())
