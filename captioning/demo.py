"""See what SMILE does, in minutes and without any download.

python -m captioning.demo [--quick] [--seed 1] [--device cpu] [key=value ...]

Draws a captioned world, trains a small captioner on it with MLE, fine-tunes copies of it with MLE,
with SMILE and with both, captions and scores the test split with each, and makes a report. What is
done already is not done again: a demo that was stopped goes on where it was.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from captioning import train
from captioning.config import keys_of, load_config
from captioning.metrics.meteor import shared_process
from captioning.models import checkpoints
from captioning.report.comparison import compare
from captioning.report.comparison_table import comparison_table
from captioning.report.page import example_lines, write_report
from captioning.runtime import stopping
from captioning.runtime.errors import UserError
from captioning.runtime.program import FAILED, exit_code_unwatched
from captioning.runtime.progress import part_of, say
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
# What the demo's runs differ in or share. eval_every, as max_epoch: one value for pre-training and
# fine-tuning would suit neither.
OWN_KEYS = (
    *("objective", "pretrained", "tokenizer", "train_file", "facts_file", "metrics", "seed"),
    *("output_dir", "eval_every", *keys_of("data"), *keys_of("length")),
)


class Step(NamedTuple):
    """title: what is done; seconds: what it takes on two cores, roughly; do: its exit code."""

    title: str
    seconds: float
    do: Callable[[], Optional[int]]


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
            load_config(REPOSITORY / config, self.overrides, self.flags)

    def steps(self) -> list[Step]:
        named = {"mle": "MLE", "smile": "SMILE", "mle_smile": "MLE and SMILE"}
        scale = 0.25 if self.quick else 1
        steps = [
            Step("drawing the world", 8 * scale, self._draw),
            Step("pre-training with MLE", 130 * scale, partial(self._train, PRETRAIN, "pretrain")),
        ]
        for name, title in named.items():
            train_it = partial(self._train, FINETUNE, name)
            steps.append(Step(f"fine-tuning with {title}", 40 * scale, train_it))
        for name, title in named.items():
            steps.append(Step(f"captioning and scoring, {title}", 6, partial(self._evaluate, name)))
        return [*steps, Step("report", 10, self._report)]

    def _draw(self) -> None:
        make_scenes(self.data, self.seed, QUICK_SPLITS if self.quick else SPLITS)

    def _train(self, config: str, name: str) -> int:
        # CIDEr and METEOR would choose among epochs, of which only the last is validated.
        overrides = [*self._overrides(config, name), "metrics=[length, facts]"]
        if config == FINETUNE:
            overrides.append(f"pretrained={self.folder / 'pretrain' / checkpoints.BEST}")
        return self._program(config, name, overrides)

    def _evaluate(self, name: str) -> int:
        overrides = self._overrides(FINETUNE, name)
        flags = {"output_dir": str(self.folder / name), **self.flags}
        if is_scored(load_config(REPOSITORY / FINETUNE, overrides, flags)):
            return 0
        return self._program(FINETUNE, name, overrides, "--evaluate", "--eval_split", "test")

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
        code = train.main([*given, *more, *overrides])
        if code == 0 and stopping.asked():
            raise stopping.Stopped
        return code

    def _report(self) -> None:
        comparison = compare([self.folder / name for name in OBJECTIVES])
        path = self.folder / "report.html"
        write_report(comparison, path, QUICK_NOTE if self.quick else None)
        print(f"\n{comparison_table(comparison)}\n\n{example_lines(comparison)}")
        say(f"\nthe report is {path}: open it in a browser")


def run(demo: Demo) -> int:
    """All steps up to one that fails, each announced with the time that all to come may take."""
    steps = demo.steps()
    taken = expected = 0.0
    for number, step in enumerate(steps, 1):
        left = sum(later.seconds for later in steps[number - 1 :])
        pace = taken / expected if expected >= 10 else 1.0
        say(f"\n[{number}/{len(steps)}] {step.title} (about {_spoken(left * pace)} to go in all)")
        began = time.monotonic()
        with part_of(f"[{number}/{len(steps)}]"):
            if step.do():
                return FAILED
        seconds = time.monotonic() - began
        if seconds > step.seconds / 5:  # less was left of it, and tells nothing of the others
            taken, expected = taken + seconds, expected + step.seconds
    return 0


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.1f} min"


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m captioning.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="in about 90 s, less convincing")
    parser.add_argument("--seed", type=int, default=0, help="of the world and of the training")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; default: the GPU if there is one")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for keys of all runs")
    arguments = parser.parse_intermixed_args(argv)

    def program() -> int:
        demo = Demo(arguments.quick, arguments.seed, arguments.overrides, arguments.device)
        with shared_process():
            return run(demo)

    return exit_code_unwatched(program, "\nstopped; the same command goes on from here")


if __name__ == "__main__":
    sys.exit(main())
