"""Plans the runs of the demo: a pre-training, a sweep from it, and a short sweep before."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.models import checkpoints
from captioning.runtime import signals
from captioning.sweep.runs import SweepRun, plan_runs
from captioning.sweep.variants import Variant

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# The runs that fine-tune copies of the pre-trained captioner.
VARIANTS = (
    Variant("mle", "MLE", ("objective=mle",)),
    Variant("smile", "SMILE", ("objective=smile",)),
    Variant("mle_smile", "MLE + SMILE", ("objective={mle: 0.5, smile: 0.5}",)),
)
# Overrides of the quick demo. It has a quarter of the training images, so its batches are smaller,
# to give an epoch enough steps.
QUICK_PRETRAIN, QUICK_FINETUNE = ("batch_size=32",), ("max_epoch=2", "eval_every=1")
# To print captions early, the full demo fine-tunes copies of the captioner after FIRST_EPOCHS
# epochs on FIRST_IMAGES images while pre-training continues, one for each of the first two
# variants. The quick demo takes too few steps in FIRST_EPOCHS epochs for good captions.
FIRST_EPOCHS, FIRST_IMAGES = 3, 1500
FIRST = ("train_file=scenes_first.json", "max_epoch=1", "eval_every=1", "num_beams=1")
# The metrics of validation during training. CIDEr and METEOR are left out: they would only be
# needed to select an epoch, but the demo validates and selects only the last epoch.
TRAINING_METRICS = "metrics=[length, facts]"
# Keys that the demo sets for each run, also in its configurations: pre-training and fine-tuning
# need different values of eval_every, max_epoch and keep_checkpoints.
DEMO_KEYS = {
    "objective",
    "pretrained",
    "tokenizer",
    "image_root",
    "ann_root",
    "train_file",
    "facts_file",
    "metrics",
    "seed",
    "output_dir",
    "eval_every",
    "max_epoch",
    "keep_checkpoints",
}


def plan_demo(
    quick: bool, data: Path, folder: Path, overrides: Sequence[str]
) -> tuple[SweepRun, list[SweepRun], list[SweepRun]]:
    """Return the pre-training, the runs of VARIANTS, and the runs for the first captions.

    - quick: whether there is less data and training, and no run for the first captions
    - data, folder: of the scenes and of the runs
    - overrides: key=value for all runs

    Raises UserError if a setting is invalid.
    """
    # An absolute path, so that the checkpoints can be used from any folder.
    vocabulary = f"tokenizer={(data / 'vocab.txt').resolve()}"
    shared = [f"image_root={data}", f"ann_root={data}", vocabulary, *overrides]
    config = str(CONFIGS / "demo_pretrain.yaml")
    keys = [*(QUICK_PRETRAIN if quick else ()), *shared]
    [pretraining] = plan_runs(config, folder, [Variant("pretrain", "", ())], keys)
    config = str(CONFIGS / "demo_finetune.yaml")
    keys = [*(QUICK_FINETUNE if quick else ()), *shared]
    changes = (f"pretrained={pretraining.folder / checkpoints.BEST}", TRAINING_METRICS)
    runs = plan_runs(config, folder, VARIANTS, keys, changes)
    weights = checkpoints.weights_path(pretraining.folder, FIRST_EPOCHS - 1)
    changes = (f"pretrained={weights}", TRAINING_METRICS, *FIRST)
    variants = () if quick else VARIANTS[:2]
    return pretraining, runs, plan_runs(config, folder / "first", variants, keys, changes)


def train_first(runs: Sequence[SweepRun], data: Path) -> Optional[int]:
    """Train the runs for the first captions, when the weights with which they start are there.

    Returns the exit code of a run that failed or stopped; otherwise None.
    """
    weights = Path(runs[0].config().pretrained)
    last = checkpoints.epoch_path(weights.parent, FIRST_EPOCHS - 1)
    # Wait for the checkpoint of this epoch, or of a later one. An empty list is smaller, too.
    while checkpoints.epoch_checkpoints(weights.parent)[-1:] < [last]:
        if signals.stop_requested():
            return None
        time.sleep(0.2)
    annotations = read_json(data / "scenes_train.json")
    write_json(annotations[:FIRST_IMAGES], data / "scenes_first.json")
    for run in runs:
        if (code := run.train()) or signals.stop_requested():
            return code
    return None
