"""Fine-tune a captioner, or caption and score a split with it.

python -m captioning.train --config configs/caption_coco.yaml
torchrun --nproc_per_node 4 -m captioning.train --config configs/caption_coco.yaml batch_size=16
python -m captioning.train --config configs/caption_coco.yaml --check
python -m captioning.train --config configs/caption_coco.yaml --evaluate --eval_split test
"""

if __name__ == "__main__":
    from captioning.runtime.start import tune_process

    tune_process()  # before torch is imported

import argparse
import sys
from collections.abc import Sequence

from captioning.config import Config, load_config
from captioning.data.sources import check_images
from captioning.files import stores
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.precision import check_precision
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.program import program_parser, run_program, show_warnings
from captioning.runtime.progress import log_line
from captioning.training.fine_tuning import fine_tune
from captioning.training.log import record_run
from captioning.training.output_folder import OutputFolder, working_folder
from captioning.training.selection import describe_selection, read_selection
from captioning.training.validation import SplitEvaluation


def parse_arguments(argv=None) -> argparse.Namespace:
    parser = program_parser("python -m captioning.train", __doc__)
    add = parser.add_argument
    add("--config", required=True, help="a YAML file, see configs/")
    add("--output_dir", help="the run's folder (default: output/NAME OF CONFIG)")
    instead = parser.add_mutually_exclusive_group().add_argument
    instead("--check", action="store_true", help="do not train: check settings and data")
    instead("--evaluate", action="store_true", help="do not train: caption and score")
    add(
        "--eval_split", choices=("val", "test"), default="val", help="the split of --evaluate (val)"
    )
    add("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one")
    add("--seed", type=int, help="replaces the seed of the config")
    add("overrides", nargs="*", metavar="key=value", help="for keys of the config")
    return parser.parse_intermixed_args(argv)


def read_config(arguments: argparse.Namespace) -> Config:
    """Return the configuration, changed by flags and overrides. Raises UserError.

    arguments: from `parse_arguments`.
    """
    flags = {key: getattr(arguments, key) for key in ("output_dir", "device", "seed")}
    flags = {key: value for key, value in flags.items() if value is not None}
    return load_config(arguments.config, arguments.overrides, flags)


def evaluate(config: Config, device, split: str, overrides: Sequence[str]) -> None:
    """Caption and score `split` with the weights that `checkpoint_to_evaluate` chooses.

    overrides: the key=value arguments of the command line. Raises UserError, Stopped.
    """
    output = OutputFolder(config.output_dir)
    evaluation = SplitEvaluation(config, split, output.folder, device)
    distributed.run_on_main(lambda: check_images(config, evaluation.samples))
    output.begin()
    # Rank 0 chooses for all ranks. Otherwise machines that do not share the folder could choose
    # different weights.
    checkpoint = distributed.run_on_main(lambda: checkpoint_to_evaluate(config, overrides))
    with distributed.first_on_each_machine():
        captioner, load_message = captioner_from(config, checkpoint)
    log_line(load_message)
    evaluation.run(captioner.to(device), split)
    folder = output.folder / "result" / split
    record_run(config, folder, checkpoint=stores.without_secrets(checkpoint))
    output.upload()
    log_line(f"captions and scores are in {stores.join(config.output_dir, 'result')}")


def checkpoint_to_evaluate(config: Config, overrides: Sequence[str]) -> str:
    """Return the name of the checkpoint to evaluate. Raises UserError if there is none.

    The first of these is chosen:

    1. `pretrained`, if an override on the command line sets it
    2. the run's best checkpoint
    3. `pretrained` of the configuration
    """
    is_overridden = any(override.startswith("pretrained=") for override in overrides)
    folder = working_folder(config.output_dir)
    name = stores.join(config.output_dir, checkpoints.BEST)
    if checkpoints.best(folder) and not (is_overridden and config.pretrained):
        if selection := read_selection(folder):
            log_line(f"{name} is of {describe_selection(selection)}")
        return name
    if config.pretrained is None:
        raise UserError(f"nothing to evaluate: {name} does not exist, and pretrained is not set")
    if not is_overridden:
        log_line(f"{name} does not exist: evaluating pretrained")
    return config.pretrained


def main(argv=None) -> int:
    """Run the program; see `captioning.runtime.program`."""
    arguments = parse_arguments(argv)
    show_warnings()
    return run_program(lambda: _train_or_evaluate(arguments))


def _train_or_evaluate(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if arguments.check:
        return fine_tune(config, distributed.start("cpu"), check_only=True)
    device = distributed.start(config.device)
    check_precision(config, device)
    if arguments.evaluate:
        evaluate(config, device, arguments.eval_split, arguments.overrides)
    else:
        fine_tune(config, device)


if __name__ == "__main__":
    sys.exit(main())
