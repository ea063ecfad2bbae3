"""Compute the likelihood of a split's human captions, and the temperature that maximises it.

    python -m captioning.calibrate --checkpoint output/sat_flickr8k/checkpoint_best.pth

Prints the mean negative log-likelihood per token of the captioner and of a unigram model, and the
temperature to use for sampling (as temperature=1.1).
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys

from captioning.data.sources import read_split
from captioning.models.build import load_trained
from captioning.models.likelihood import UNSCALED, find_minimum, likelihood, unigram_nll
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import add_model_flags, program_parser, run_program


def main(argv=None) -> int:
    """Run the program; return its exit code, which is 2 after a one-line error for the user."""
    parser = program_parser("python -m captioning.calibrate", __doc__)
    add = parser.add_argument
    add("--checkpoint", required=True, help="as for scripts/caption.sh")
    add_model_flags(parser)
    add("--split", choices=("val", "test"), default="val")
    arguments = parser.parse_args(argv)
    return run_program(lambda: calibrate(arguments), "stopped")


def calibrate(arguments: argparse.Namespace) -> None:
    """Compute and print the likelihood and the best temperature. Raises UserError."""
    device = distributed.start(arguments.device)
    config, captioner = load_trained(arguments.checkpoint, arguments.config, device)
    if not config.image_root:
        raise UserError(f"{arguments.checkpoint} does not say its data: give them with --config")
    training, samples = read_split(config, "train"), read_split(config, arguments.split)
    tokens, nll = likelihood(captioner, samples, config, device)
    unigram = unigram_nll(captioner, training, samples, config)
    temperature, calibrated = find_minimum(nll)
    print(f"{tokens} tokens of {len(samples)} images of {arguments.split}, nats per token")
    print(f"  negative log-likelihood      {nll[UNSCALED]:.3f}")
    print(f"  of a unigram model           {unigram:.3f}")
    print(f"  with temperature={temperature:.3f}      {calibrated:.3f}")


if __name__ == "__main__":
    sys.exit(main())
