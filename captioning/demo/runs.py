"""Defines the steps of the demo, and trains the runs of each step."""

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

import torch

from captioning import train
from captioning.config import Config, config_class, keys_of
from captioning.demo.status import DemoProgress, Step
from captioning.files.writing import write_text
from captioning.models import checkpoints
from captioning.report.comparison import read_comparison
from captioning.report.comparison_table import score_table
from captioning.report.page import example_lines, write_report
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.jobs import Job, cores, ranks_of, run_jobs
from captioning.runtime.progress import log_line
from captioning.scenes.make import SPLITS, make_scenes
from captioning.sweep.runs import read_config, train_and_score

REPOSITORY = Path(__file__).resolve().parents[2]
PRETRAIN = "pretrain"  # the name of the run that is trained first
# {name: objective} of the runs that fine-tune copies of the pre-trained captioner.
OBJECTIVES = {"mle": "mle", "smile": "smile", "mle_smile": "{mle: 0.5, smile: 0.5}"}
QUICK_SPLITS = {"train": 1500, "val": 50, "test": 150}
# Overrides of the quick demo. It has a quarter of the training images, so its batches are smaller,
# to give an epoch enough steps.
QUICK_PRETRAIN, QUICK_FINETUNE = ("batch_size=32",), ("max_epoch=2", "eval_every=1")
QUICK_NOTE = (
    "This is the quick demo: a quarter of the data and a fraction of the training. It shows that "
    "everything runs; its numbers are weaker and less certain than those of the full demo."
)
PRETRAINING_RANKS = 2  # number of processes of pre-training on a CPU
# To print captions early, the full demo fine-tunes copies of the captioner after FIRST_EPOCHS
# epochs on FIRST_IMAGES images while pre-training continues, one copy for each of FIRST_RUNS. The
# quick demo takes too few steps in FIRST_EPOCHS epochs for good captions.
FIRST_EPOCHS, FIRST_IMAGES = 3, 1500
FIRST_RUNS = ("mle", "smile")
FIRST_OVERRIDES = ("max_epoch=1", "eval_every=1", "metrics=[length]", "num_beams=1")
# The metrics of validation during training. CIDEr and METEOR are left out: they would only be
# needed to select an epoch, but the demo validates and selects only the last epoch.
TRAINING_METRICS = "metrics=[length, facts]"
# Keys that a user cannot override, because the demo sets them for each run. eval_every is among
# them, because pre-training and fine-tuning need different values.
DEMO_KEYS = (
    "objective",
    "pretrained",
    "tokenizer",
    "train_file",
    "facts_file",
    "metrics",
    "seed",
    "output_dir",
    "eval_every",
    *keys_of("data", config_class()),
    *keys_of("length"),
)


class Demo:
    """The demo of one seed. Each run has its own folder."""

    def __init__(self, quick: bool, seed: int, overrides: Sequence[str], device: Optional[str]):
        """Check all settings before anything is made or trained. Raises UserError.

        seed: for the drawn scenes and for training. overrides: for all runs, as key=value. device:
        None for the device in the configuration files.
        """
        variant = ("-quick" if quick else "") + (f"-seed{seed}" if seed else "")
        self.data, self.folder = Path(f"data/scenes{variant}"), Path(f"output/demo{variant}")
        self.quick, self.seed = quick, seed
        self.flags = ["--seed", str(seed), *(["--device", device] if device else [])]
        self.overrides = overrides
        for override in overrides:
            key = override.partition("=")[0]
            if key in DEMO_KEYS:
                raise UserError(f"{key} is set by the demo itself and cannot be overridden")
        for name in OBJECTIVES:
            self.config(name)
        config = self.config(PRETRAIN)
        self.batch_size = config.batch_size
        self.on_gpu = config.device != "cpu" and torch.cuda.is_available()

    def steps(self) -> list[Step]:
        scale = 0.25 if self.quick else 1
        # The expected durations, in seconds on 2 cores.
        pretraining, fine_tuning = 54 * scale, 37 * scale + 5
        if self.on_gpu or cores() == 1:  # the runs are fine-tuned one after the other
            pretraining *= 1.5
            fine_tuning *= 1.6
        elif cores() > 2:
            fine_tuning *= 0.7
        return [
            Step("drawing the world", 7 * scale, self._make_scenes),
            Step("pre-training with MLE", pretraining, self._pretrain),
            Step("fine-tuning, captioning and scoring", fine_tuning, self._fine_tune),
            Step("report", 2, self._report),
        ]

    def _make_scenes(self, status: DemoProgress):
        make_scenes(self.data, self.seed, QUICK_SPLITS if self.quick else SPLITS)

    def _pretrain(self, status: DemoProgress):
        """Pre-train, and at the same time fine-tune copies for the first captions.

        On a CPU, PRETRAINING_RANKS processes pre-train, whatever the number of cores, so that all
        machines get the same results. If the batch size is not a multiple of PRETRAINING_RANKS, or
        on a GPU, there is one process.
        """
        ranks = 1 if self.on_gpu or self.batch_size % PRETRAINING_RANKS else PRETRAINING_RANKS
        arguments = self._arguments(
            PRETRAIN, f"batch_size={self.batch_size // ranks}", TRAINING_METRICS
        )
        jobs = ranks_of(self._job(PRETRAIN, partial(train.main, arguments)), ranks)
        if not self.quick:
            jobs.append(self._job("first", self._fine_tune_briefly))
        status.follow(
            {PRETRAIN: self.config(PRETRAIN)},
            [self.config(f"first/{name}") for name in FIRST_RUNS],
        )
        run_jobs(jobs, [{}] * len(jobs), status)

    def _fine_tune_briefly(self) -> Optional[int]:
        """Fine-tune copies of the partly trained captioner, for the first captions.

        Returns the exit code of a run that failed or stopped; otherwise None.
        """
        folder = self.folder / PRETRAIN
        first = checkpoints.epoch_path(folder, FIRST_EPOCHS - 1)
        # Wait for the checkpoint of this epoch, or of a later one. An empty list is smaller, too.
        while checkpoints.epoch_checkpoints(folder)[-1:] < [first]:
            if signals.stop_requested():
                return None
            time.sleep(0.2)
        weights = checkpoints.weights_path(folder, FIRST_EPOCHS - 1)
        if not weights.exists():  # the user has replaced the configuration's keep_checkpoints=all
            return None
        annotations = json.loads((self.data / "scenes_train.json").read_text())[:FIRST_IMAGES]
        write_text(json.dumps(annotations), self.data / "scenes_first.json")
        changes = [f"pretrained={weights}", "train_file=scenes_first.json", *FIRST_OVERRIDES]
        for name in FIRST_RUNS:
            code = train.main(self._arguments(f"first/{name}", *changes))
            if code or signals.stop_requested():
                return code
        return None

    def _fine_tune(self, status: DemoProgress):
        """Train the runs of all objectives, then caption and score the test split."""
        pretrained = f"pretrained={self.folder / PRETRAIN / checkpoints.BEST}"
        jobs = []
        for name in OBJECTIVES:
            training = self._arguments(name, pretrained, TRAINING_METRICS)
            jobs.append(self._job(name, partial(train_and_score, training, self._arguments(name))))
        status.follow(
            {name: self.config(name) for name in OBJECTIVES},
            [self.config(name) for name in FIRST_RUNS],
        )
        # All three runs are trained at once, even on two cores: if the third waited for another,
        # one core would be idle at the end.
        parallel = len(jobs) if cores() > 1 and not self.on_gpu else 1
        run_jobs(jobs, [{}] * parallel, status)

    def _job(self, name: str, program: Callable[[], Optional[int]]) -> Job:
        return Job(name, program, self.folder / f"{name}.log")

    def config(self, name: str) -> Config:
        """Return the configuration for captioning and scoring a run. name: see `_arguments`."""
        return read_config(self._arguments(name))

    def _arguments(self, name: str, *changes: str) -> list[str]:
        """Return the command line of captioning.train for a run.

        name: the run's folder within the demo's folder, such as "mle" or "first/mle". changes: more
        overrides for this run.
        """
        overrides = [f"image_root={self.data}", f"ann_root={self.data}"]
        # Absolute, so that the checkpoints can be used from any folder.
        overrides.append(f"tokenizer={(self.data / 'vocab.txt').resolve()}")
        if name == PRETRAIN:
            file, quick = "demo_pretrain.yaml", QUICK_PRETRAIN
        else:
            file, quick = "demo_finetune.yaml", QUICK_FINETUNE
            overrides.append(f"objective={OBJECTIVES[Path(name).name]}")
        if self.quick:
            overrides += quick
        config, folder = str(REPOSITORY / "configs" / file), str(self.folder / name)
        arguments = ["--config", config, "--output_dir", folder, *self.flags]
        return [*arguments, *overrides, *self.overrides, *changes]

    def _report(self, status: DemoProgress):
        comparison = read_comparison([self.folder / name for name in OBJECTIVES])
        path = self.folder / "report.html"
        write_report(comparison, path, QUICK_NOTE if self.quick else None)
        print(f"\n{score_table(comparison.rows)}\n\n{example_lines(comparison)}")
        log_line(f"\nthe report is {path}: open it in a browser")
