"""See what SMILE does, in minutes and without any download.

python -m captioning.demo [--quick] [--seed 1] [--device cpu] [key=value ...]

Draws a captioned world, trains a small captioner on it with MLE, fine-tunes copies of it with MLE,
with SMILE and with both, captions and scores the test split with each, and makes a report. What is
done already is not done again: a demo that was stopped goes on where it was.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional

import torch

from captioning import train
from captioning.config import Config, keys_of, load_config
from captioning.data import read_split
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.generation import caption_images
from captioning.report.comparison import compare
from captioning.report.comparison_table import comparison_table
from captioning.report.page import example_lines, write_report
from captioning.runtime import stopping
from captioning.runtime.errors import UserError
from captioning.runtime.program import exit_code_unwatched
from captioning.runtime.progress import heard_by, part_of, say
from captioning.runtime.remaining import Remaining, StatusLine, spoken
from captioning.runtime.side_by_side import Job, cores, prepare, ranks_of, run_jobs
from captioning.scenes.make import SPLITS, make_scenes
from captioning.training.validation_history import is_scored

REPOSITORY = Path(__file__).resolve().parent.parent
PRETRAIN, FINETUNE = "configs/demo_pretrain.yaml", "configs/demo_finetune.yaml"
OBJECTIVES = {"mle": "mle", "smile": "smile", "mle_smile": "{mle: 0.5, smile: 0.5}"}
QUICK_SPLITS = {"train": 1500, "val": 50, "test": 150}
QUICK = {PRETRAIN: [], FINETUNE: ["max_epoch=2"]}  # an epoch is a quarter as long
QUICK_NOTE = (
    "This is the quick demo: a quarter of the data and a fraction of the training. It shows that "
    "everything runs; its numbers are weaker and less certain than those of the whole one."
)
# What runs import, some of it late: seconds, for each of five processes.
IMPORTED = ("captioning.train", "torch._dynamo", "torch.utils.tensorboard", "transformers")
RANKS = 2  # processes of pre-training on a CPU
# Of a run; the rest is captions and scores, of which pre-training has few.
PRETRAINING, TRAINING = 0.98, 0.85
EXAMPLES = 2  # of first captions
TITLES = {"pretrain": "MLE", "mle": "MLE", "smile": "SMILE", "mle_smile": "MLE + SMILE"}
# CIDEr and METEOR would choose among epochs, of which only the last is validated.
IN_TRAINING = "metrics=[length, facts]"
# What the demo's runs differ in or share. eval_every, as max_epoch: one value for pre-training and
# fine-tuning would suit neither.
OWN_KEYS = (
    *("objective", "pretrained", "tokenizer", "train_file", "facts_file", "metrics", "seed"),
    *("output_dir", "eval_every", *keys_of("data"), *keys_of("length")),
)


class Step(NamedTuple):
    """title: what is done; seconds: what it takes on two cores, roughly; do: given the step."""

    title: str
    seconds: float
    do: Callable[["Shown"], None]


class Demo:
    """The runs of one seed, in folders of their own."""

    def __init__(self, quick: bool, seed: int, overrides: Sequence[str], device: Optional[str]):
        """Raises UserError for impossible settings, before anything is drawn or trained."""
        variant = ("-quick" if quick else "") + (f"-seed{seed}" if seed else "")
        self.data, self.folder = Path(f"data/scenes{variant}"), Path(f"output/demo{variant}")
        self.quick, self.seed = quick, seed
        self.flags = {"seed": seed, **({"device": device} if device else {})}
        self.overrides = list(overrides)
        for key in (override.partition("=")[0] for override in overrides):
            if key in OWN_KEYS:
                raise UserError(
                    f"{key} is what the demo's runs differ in or share: it sets it itself"
                )
        for config in (PRETRAIN, FINETUNE):
            chosen = load_config(REPOSITORY / config, self.overrides, self.flags)
        self.on_gpu = chosen.device != "cpu" and torch.cuda.is_available()

    def steps(self) -> list[Step]:
        scale = 0.25 if self.quick else 1
        # Roughly how much longer than on two cores, which do not work twice as fast as one.
        at_once = 1 if self.on_gpu else min(cores(), 3)
        pretraining, fine_tuning = [(1.5, 1.6), (1, 1), (1, 0.7)][at_once - 1]
        fine_tuning *= 90 * scale + 20
        return [
            Step("drawing the world", 8 * scale, self._draw),
            Step("pre-training with MLE", 140 * scale * pretraining, self._pretrain),
            Step("fine-tuning, captioning and scoring", fine_tuning, self._fine_tune),
            Step("report", 8, self._report),
        ]

    def _draw(self, shown: "Shown") -> None:
        make_scenes(self.data, self.seed, QUICK_SPLITS if self.quick else SPLITS)

    def _pretrain(self, shown: "Shown") -> None:
        """Two processes on a CPU, however many cores there are: the figures are the same."""
        overrides = self._overrides(PRETRAIN, "pretrain")
        batch = load_config(REPOSITORY / PRETRAIN, overrides, self.flags).batch_size
        ranks = RANKS if batch % RANKS == 0 and not self.on_gpu else 1
        overrides.append(f"batch_size={batch // ranks}")
        do = partial(self._program, PRETRAIN, "pretrain", [*overrides, IN_TRAINING])
        jobs = ranks_of(self._job("pretrain", do), ranks)
        run_jobs(jobs, ranks, partial(shown.heard, ["pretrain"], PRETRAINING), shown.draw)

    def _fine_tune(self, shown: "Shown") -> None:
        jobs = [self._job(name, partial(self._fine_tune_one, name)) for name in OBJECTIVES]
        # All three share two cores: one after the other two would leave a core idle.
        at_once = len(jobs) if cores() > 1 and not self.on_gpu else 1
        preview = FirstCaptions(self)

        def meanwhile() -> None:
            shown.draw()
            preview.show_if_there()

        run_jobs(jobs, at_once, partial(shown.heard, list(OBJECTIVES), TRAINING), meanwhile)

    def _job(self, name: str, do: Callable[[], Optional[int]]) -> Job:
        return Job(name, do, self.folder / f"{name}.log")

    def _fine_tune_one(self, name: str) -> Optional[int]:
        """Train it, then caption and score the test split, in a process of its own."""
        overrides = self._overrides(FINETUNE, name)
        pretrained = f"pretrained={self.folder / 'pretrain' / checkpoints.BEST}"
        code = self._program(FINETUNE, name, [*overrides, pretrained, IN_TRAINING])
        if code or stopping.asked() or is_scored(self.scored(name)):
            return code
        return self._program(FINETUNE, name, overrides, "--evaluate", "--eval_split", "test")

    def scored(self, name: str) -> Config:
        """The configuration in which a run is captioned and scored."""
        flags = {"output_dir": str(self.folder / name), **self.flags}
        return load_config(REPOSITORY / FINETUNE, self._overrides(FINETUNE, name), flags)

    def _overrides(self, config: str, name: str) -> list[str]:
        overrides = [f"image_root={self.data}", f"ann_root={self.data}"]
        overrides.append(f"tokenizer={self.data / 'vocab.txt'}")
        if config == FINETUNE:
            overrides.append(f"objective={OBJECTIVES[name]}")
        return [*overrides, *(QUICK[config] if self.quick else []), *self.overrides]

    def _program(self, config: str, name: str, overrides: list[str], *more: str) -> int:
        """What scripts/train.sh and scripts/eval.sh run."""
        flags = {"config": REPOSITORY / config, "output_dir": self.folder / name, **self.flags}
        given = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
        return train.main([*given, *more, *overrides])

    def _report(self, shown: "Shown") -> None:
        comparison = compare([self.folder / name for name in OBJECTIVES])
        path = self.folder / "report.html"
        write_report(comparison, path, QUICK_NOTE if self.quick else None)
        print(f"\n{comparison_table(comparison)}\n\n{example_lines(comparison)}")
        say(f"\nthe report is {path}: open it in a browser")


class FirstCaptions:
    """What the runs of MLE and of SMILE say of two images, once both have ended an epoch."""

    def __init__(self, demo: Demo):
        self.configs = [demo.scored(name) for name in ("mle", "smile")]
        self.shown = all(is_scored(config) for config in self.configs)
        self.tried: list[list[Path]] = []

    def show_if_there(self) -> None:
        if self.shown:
            return
        newest = [checkpoints.of_epochs(Path(config.output_dir)) for config in self.configs]
        if not all(newest) or newest == self.tried:
            return
        self.tried = newest
        samples = read_split(self.configs[0], "test")
        samples = samples[:: len(samples) // EXAMPLES][:EXAMPLES]
        said = []
        with heard_by(lambda description, share: None), suppress(UserError):  # of one that went
            for config, epochs in zip(self.configs, newest):
                config = config.model_copy(update={"num_workers": 0})
                captioner, _ = captioner_from(config, str(epochs[-1]))
                results = caption_images(captioner, samples, config, torch.device("cpu"), "")
                said.append([result["caption"] for result in results])
        if len(said) < len(self.configs):
            return
        self.shown = True
        say("\nthe first captions of the captioners that are being fine-tuned:")
        for sample, mle, smile in zip(samples, *said):
            say(f"{Path(sample.image)}\n  MLE    {mle}\n  SMILE  {smile}")
        say("")


class Shown:
    """The line that says how far the demo is."""

    def __init__(self, steps: Sequence[Step]):
        self.steps, self.number, self.line = steps, 0, StatusLine()
        self.remaining = Remaining([step.seconds for step in steps])
        self.shares: dict[str, float] = {}

    def begin(self, number: int) -> None:
        self.number, self.shares = number, {}
        self.remaining.at(number, 0.0)
        left = spoken(self.remaining.left())
        say(f"\n{self._place()} {self.steps[number].title} (about {left} to go in all)")

    def heard(
        self, names: Sequence[str], training: float, name: str, description: str, share: float
    ) -> None:
        """A process of the step tells what its bar is called, and how much of it is done.

        names: of all its runs; training: how much of a run that is.
        """
        first = name not in self.shares
        of_run = _share_of_run(training, description, share)
        self.shares[name] = max(self.shares.get(name, 0.0), of_run)
        mean = sum(self.shares.get(each, 0.0) for each in names) / len(names)
        self.remaining.at(self.number, mean, first)

    def draw(self) -> None:
        parts = [f"{TITLES[name]} {share:.0%}" for name, share in self.shares.items()]
        left = spoken(self.remaining.left())
        if parts:
            self.line.show(f"{self._place()} {', '.join(parts)}; about {left} to go in all")

    def end(self) -> None:
        # A step without processes has a pace of its own, which tells nothing of the others'.
        self.remaining.at(self.number, 1.0, first=not self.shares)
        self.line.clear()

    def _place(self) -> str:
        return f"[{self.number + 1}/{len(self.steps)}]"


def _share_of_run(training: float, description: str, share: float) -> float:
    """How much of a run is done, by what a progress bar of it is called and shows."""
    epoch = re.match(r"epoch (\d+)/(\d+)$", description)
    if epoch:
        return training * (int(epoch[1]) - 1 + share) / int(epoch[2])
    return training + (1 - training) * share / 2 if description.endswith("test") else 0.0


def run(demo: Demo) -> int:
    """All steps, up to one that fails, each announced with the time that all to come may take."""
    steps = demo.steps()
    # The captioner is so small that threads would wait for one another longer than they work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes to come
    prepare(IMPORTED)
    shown = Shown(steps)
    for number, step in enumerate(steps):
        shown.begin(number)
        try:
            with part_of(f"[{number + 1}/{len(steps)}]"):
                step.do(shown)
        finally:
            shown.end()
    return 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m captioning.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in about 90 s, less convincing")
    parser.add_argument("--seed", type=int, default=0, help="of the world and of the training")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    arguments = parser.parse_intermixed_args(argv)

    def program() -> int:
        demo = Demo(arguments.quick, arguments.seed, arguments.overrides, arguments.device)
        return run(demo)

    return exit_code_unwatched(program, "\nstopped; the same command goes on from here")


if __name__ == "__main__":
    sys.exit(main())
