"""The steps of the demo, and the runs of each step."""

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

import torch

from captioning import train
from captioning.config import Config, config_class, keys_of, load_config
from captioning.demo.status import DemoProgress, Step
from captioning.files.writing import write_text
from captioning.models import checkpoints
from captioning.report.comparison import compare
from captioning.report.comparison_table import comparison_table
from captioning.report.page import example_lines, write_report
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job, cores, ranks_of, run_jobs
from captioning.runtime.progress import log_line
from captioning.scenes.make import SPLITS, make_scenes
from captioning.training.validation_history import is_scored

REPOSITORY = Path(__file__).resolve().parents[2]
PRETRAIN, FINETUNE = "configs/demo_pretrain.yaml", "configs/demo_finetune.yaml"
OBJECTIVES = {"mle": "mle", "smile": "smile", "mle_smile": "{mle: 0.5, smile: 0.5}"}
QUICK_SPLITS = {"train": 1500, "val": 50, "test": 150}
# The quick demo has a quarter of the images. Smaller batches give its epochs enough steps.
QUICK_OVERRIDES = {PRETRAIN: ["batch_size=32"], FINETUNE: ["max_epoch=2", "eval_every=1"]}
QUICK_NOTE = (
    "This is the quick demo: a quarter of the data and a fraction of the training. It shows that "
    "everything runs; its numbers are weaker and less certain than those of the full demo."
)
PRETRAINING_RANKS = 2  # processes of pre-training on a CPU
# To print first captions early, copies of the captioner as it is after FIRST_EPOCHS epochs of
# pre-training are fine-tuned on FIRST_IMAGES images while pre-training continues. The quick demo
# does without: after so few of its steps, the captioner has learned too little.
FIRST_EPOCHS, FIRST_IMAGES = 3, 1500
FIRST_RUNS = ("mle", "smile")
FIRST_OVERRIDES = ("max_epoch=1", "eval_every=1", "metrics=[length]", "num_beams=1")
# The metrics of validation. CIDEr and METEOR are not needed to select an epoch: the last one is
# selected.
TRAINING_METRICS = "metrics=[length, facts]"
# Keys that a user cannot override, because the demo sets them for each run. eval_every is one of
# them, because its values in the files PRETRAIN and FINETUNE differ.
DEMO_KEYS = (
    *("objective", "pretrained", "tokenizer", "train_file", "facts_file", "metrics", "seed"),
    *("output_dir", "eval_every", *keys_of("data", config_class()), *keys_of("length")),
)


class Demo:
    """The runs of one seed, each in its own folder."""

    def __init__(self, quick: bool, seed: int, overrides: Sequence[str], device: Optional[str]):
        """Check all settings before anything is made or trained. Raises UserError."""
        variant = ("-quick" if quick else "") + (f"-seed{seed}" if seed else "")
        self.data, self.folder = Path(f"data/scenes{variant}"), Path(f"output/demo{variant}")
        self.quick, self.seed = quick, seed
        self.flags = {"seed": seed, **({"device": device} if device else {})}
        self.overrides = list(overrides)
        for key in (override.partition("=")[0] for override in overrides):
            if key in DEMO_KEYS:
                raise UserError(f"{key} is set by the demo itself and cannot be overridden")
        for config in (PRETRAIN, FINETUNE):
            chosen = load_config(REPOSITORY / config, self.overrides, self.flags)
        self.on_gpu = chosen.device != "cpu" and torch.cuda.is_available()
        self.environment: Mapping[str, str] = {}  # added to the variables of each job

    def steps(self) -> list[Step]:
        scale = 0.25 if self.quick else 1
        # Durations of pre-training and fine-tuning on 1, 2 and at least 3 cores, relative to 2.
        # On a GPU, as on one core, the runs are fine-tuned one after the other.
        parallel = 1 if self.on_gpu else min(cores(), 3)
        pretraining, fine_tuning = [(1.5, 1.6), (1, 1), (1, 0.7)][parallel - 1]
        fine_tuning *= 37 * scale + 5
        return [
            Step("drawing the world", 7 * scale, self._make_scenes),
            Step("pre-training with MLE", 54 * scale * pretraining, self._pretrain),
            Step("fine-tuning, captioning and scoring", fine_tuning, self._fine_tune),
            Step("report", 2, self._report),
        ]

    def _make_scenes(self, status: DemoProgress) -> None:
        make_scenes(self.data, self.seed, QUICK_SPLITS if self.quick else SPLITS)

    def _pretrain(self, status: DemoProgress) -> None:
        """Pre-train, and fine-tune copies for the first captions at the same time.

        On a CPU there are PRETRAINING_RANKS processes, whatever the number of cores, so that all
        machines get the same results. With a batch size that they cannot share, there is one.
        """
        overrides = self._overrides(PRETRAIN, "pretrain")
        batch = load_config(REPOSITORY / PRETRAIN, overrides, self.flags).batch_size
        ranks = PRETRAINING_RANKS if batch % PRETRAINING_RANKS == 0 and not self.on_gpu else 1
        overrides.append(f"batch_size={batch // ranks}")
        pretrain = partial(self._run_training, PRETRAIN, "pretrain", [*overrides, TRAINING_METRICS])
        jobs = ranks_of(self._job("pretrain", pretrain), ranks)
        if not self.quick:
            jobs.append(self._job("first", self._fine_tune_briefly))
        self._run(jobs, len(jobs), [f"first/{name}" for name in FIRST_RUNS], status)

    def _fine_tune_briefly(self) -> Optional[int]:
        """Fine-tune copies of the half-trained captioner, for the first captions."""
        folder = self.folder / "pretrain"
        # Wait for the checkpoint of this epoch, or of a later one.
        while checkpoints.epoch_checkpoints(folder)[-1:] < [
            checkpoints.epoch_path(folder, FIRST_EPOCHS - 1)
        ]:
            if signals.stop_requested():
                return None
            time.sleep(0.2)
        weights = checkpoints.weights_path(folder, FIRST_EPOCHS - 1)
        if not weights.exists():  # they are written only with keep_checkpoints=all
            return None
        annotations = json.loads((self.data / "scenes_train.json").read_text())[:FIRST_IMAGES]
        write_text(json.dumps(annotations), self.data / "scenes_first.json")
        changes = [f"pretrained={weights}", "train_file=scenes_first.json", *FIRST_OVERRIDES]
        for name in FIRST_RUNS:
            overrides = [*self._overrides(FINETUNE, name), *changes]
            code = self._run_training(FINETUNE, f"first/{name}", overrides)
            if code or signals.stop_requested():
                return code
        return None

    def _fine_tune(self, status: DemoProgress) -> None:
        jobs = [self._job(name, partial(self._fine_tune_one, name)) for name in OBJECTIVES]
        # All three at once, even on two cores. Two at first and then the third would leave a core
        # idle.
        parallel = len(jobs) if cores() > 1 and not self.on_gpu else 1
        self._run(jobs, parallel, FIRST_RUNS, status)

    def _run(
        self, jobs: Sequence[Job], parallel: int, first_runs: Sequence[str], status: DemoProgress
    ) -> None:
        """Run jobs. first_runs: the MLE run and the SMILE run whose first captions are printed."""
        # If a stopped demo is continued and these runs are already scored, nothing is printed.
        status.first.shown |= all(is_scored(self.scoring_config(name)) for name in FIRST_RUNS)
        status.follow(jobs, [self.scoring_config(name) for name in first_runs])
        run_jobs(jobs, [{}] * parallel, status)

    def _job(self, name: str, program: Callable[[], Optional[int]]) -> Job:
        return Job(name, program, self.folder / f"{name}.log", self.environment)

    def _fine_tune_one(self, name: str) -> Optional[int]:
        """Train a run, then caption and score the test split."""
        overrides = self._overrides(FINETUNE, name)
        pretrained = f"pretrained={self.folder / 'pretrain' / checkpoints.BEST}"
        code = self._run_training(FINETUNE, name, [*overrides, pretrained, TRAINING_METRICS])
        if code or signals.stop_requested() or is_scored(self.scoring_config(name)):
            return code
        return self._run_training(FINETUNE, name, overrides, "--evaluate", "--eval_split", "test")

    def scoring_config(self, name: str) -> Config:
        """Return the configuration with which a run is captioned and scored."""
        flags = {"output_dir": str(self.folder / name), **self.flags}
        overrides = self._overrides(FINETUNE, Path(name).name)
        return load_config(REPOSITORY / FINETUNE, overrides, flags)

    def _overrides(self, config: str, name: str) -> list[str]:
        """Return the overrides of a run. config: PRETRAIN or FINETUNE. name: the run's."""
        overrides = [f"image_root={self.data}", f"ann_root={self.data}"]
        overrides.append(f"tokenizer={self.data / 'vocab.txt'}")
        if config == FINETUNE:
            overrides.append(f"objective={OBJECTIVES[name]}")
        return [*overrides, *(QUICK_OVERRIDES[config] if self.quick else []), *self.overrides]

    def _run_training(self, config: str, name: str, overrides: list[str], *more: str) -> int:
        """Run captioning.train as scripts/train.sh and scripts/eval.sh do. Return its exit code."""
        flags = {"config": REPOSITORY / config, "output_dir": self.folder / name, **self.flags}
        arguments = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        return train.main([*arguments, *more, *overrides])

    def _report(self, status: DemoProgress) -> None:
        comparison = compare([self.folder / name for name in OBJECTIVES])
        path = self.folder / "report.html"
        write_report(comparison, path, QUICK_NOTE if self.quick else None)
        print(f"\n{comparison_table(comparison)}\n\n{example_lines(comparison)}")
        log_line(f"\nthe report is {path}: open it in a browser")
