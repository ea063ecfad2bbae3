"""The runs of all seeds: which there are, what each depends on, which are done."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.real_photos.judge import HUMANS, is_answered
from benchmarks.real_photos.parts import write_parts
from captioning.config import Config, keys_of, load_config
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.sweep.one_run import without_pretrained
from captioning.sweep.programs import Program, run_programs, slots
from captioning.sweep.variants import Variant
from captioning.training.validation_history import is_done, is_trained

START, JUDGE = "start", "judge"
# A captioner that can caption is where SMILE begins; so all go on from one start of MLE.
FINE_TUNING = ("init_lr=2e-4", "warmup_steps=0", "max_epoch=3", "eval_every=3")


class Runs:
    """The runs of a configuration's seeds, each in a folder of its own.

    All run on the CPU. `folder`/seedN has start, judge and a run a variant. keys: overrides of all
    runs, tuning: those of the variants alone. Raises UserError.
    """

    def __init__(
        self,
        config: str,
        folder: Path,
        seeds: int,
        chosen: Sequence[Variant],
        keys: Sequence[str],
        tuning: Sequence[str] = FINE_TUNING,
    ):
        self.config, self.folder = config, folder
        self.keys, self.tuning = [*keys, "device=cpu"], list(tuning)
        self.seeds, self.variants = range(seeds), list(chosen)
        self.parts = {
            seed: write_parts(load_config(config, keys), seed, self.of(seed, "photos"))
            for seed in self.seeds
        }

    def of(self, seed: int, name: str) -> Path:
        return self.folder / f"seed{seed}" / name

    def run(self, jobs: int) -> None:
        """Do what is not done, `jobs` programs at a time. Raises UserError for one that fails."""
        free = slots("cpu", jobs)
        _run(self._features(jobs), free)
        for programs in (self._starts, self._tuned, self._judged):
            _run(programs(), free)
            for program in programs():  # which was asked to stop, and it alone
                raise UserError(f"{program.name} was stopped; the same command goes on from here")

    def _features(self, jobs: int) -> Iterable[Program]:
        """Those of all photos, unless the runs that need them are done."""
        if not load_config(self.config, self.keys).encoder_features or not list(self._starts()):
            return
        for part in range(jobs):
            arguments = ["benchmarks.real_photos.features", str(part), str(jobs)]
            name = f"features{part}"
            yield self._program(name, arguments, self.folder / name, self.keys)

    def _starts(self) -> Iterable[Program]:
        """A start of MLE and a judge for each seed."""
        for seed in self.seeds:
            for name, who in ((START, "captioner"), (JUDGE, "judge")):
                # A judge of the seed's own would begin as its captioner did.
                number = seed if name == START else seed + 1000
                keys = [*self.keys, f"train_file={self.parts[seed][who]}", f"seed={number}"]
                folder = self.of(seed, name)
                config = load_config(self.config, keys, {"output_dir": str(folder)})
                if not (is_trained(config) and _is_of(folder, config)):
                    arguments = ["captioning.train"]  # which refuses to go on with another run
                    yield self._program(f"seed{seed}/{name}", arguments, folder, keys)

    def _tuned(self) -> Iterable[Program]:
        """A run a variant and seed, its test captions scored."""
        for seed in self.seeds:
            for variant in self.variants:
                folder, keys = self.of(seed, variant.name), self._tuning_keys(seed, variant)
                flags = {"output_dir": str(folder)}
                trained = load_config(self.config, keys, flags)
                scored = load_config(self.config, without_pretrained(keys), flags)
                if not is_done(trained, scored):
                    name = f"seed{seed}/{variant.name}"
                    yield self._program(name, ["captioning.sweep.one_run"], folder, keys)

    def _tuning_keys(self, seed: int, variant: Variant) -> list[str]:
        own = [
            f"train_file={self.parts[seed]['captioner']}",
            f"pretrained={self.of(seed, START) / checkpoints.BEST}",
            f"seed={seed}",
            *variant.overrides,
        ]
        return [*self.keys, *self.tuning, *own]

    def _judged(self) -> Iterable[Program]:
        for seed in self.seeds:
            judge = self.of(seed, JUDGE)
            for name in (HUMANS, *(variant.name for variant in self.variants)):
                run = self.of(seed, name)
                if not is_answered(judge, run):
                    arguments = ["benchmarks.real_photos.judge", str(judge), str(run)]
                    yield Program(
                        f"seed{seed}/{name}, judged",
                        [sys.executable, "-m", *arguments],
                        judge.with_name(f"judging_{name}.log"),
                    )

    def _program(
        self, name: str, arguments: Sequence[str], folder: Path, keys: Sequence[str]
    ) -> Program:
        where = ["--config", self.config, "--output_dir", str(folder)]
        command = [sys.executable, "-m", *arguments, *where, *keys]
        return Program(name, command, folder.with_name(f"{folder.name}.log"))


def _run(programs: Iterable[Program], free: Sequence[dict[str, str]]) -> None:
    for name, why in run_programs(list(programs), free).items():
        raise UserError(f"{name} failed: {why}")


def _is_of(folder: Path, config: Config) -> bool:
    """Whether the run in a folder is that of a configuration, wherever its data lie."""
    record = load_config(folder / "config.yaml")
    keys = [key for role in ("run", "batch", "length") for key in keys_of(role, type(record))]
    return all(getattr(record, key) == getattr(config, key) for key in keys)
