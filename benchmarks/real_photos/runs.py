"""The runs of all seeds: which there are, what each depends on, which are done."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Callable

from benchmarks.real_photos import features, judge
from benchmarks.real_photos.judge import HUMANS, is_answered
from benchmarks.real_photos.parts import write_parts
from captioning import train
from captioning.config import Config, keys_of, load_config
from captioning.models import checkpoints
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.sweep.one_run import train_and_score, without_pretrained
from captioning.sweep.parallel_runs import run_in_slots, slots
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

    def run(self, parallel: int) -> None:
        """Do what is not done, `parallel` at a time. Raises UserError for one that fails."""
        free = slots("cpu", parallel)
        _run(self._features(parallel), free)
        for jobs in (self._starts, self._tuned, self._judged):
            _run(jobs(), free)

    def _features(self, jobs: int) -> Iterable[Job]:
        """Those of all photos, unless the runs that need them are done."""
        if not load_config(self.config, self.keys).encoder_features or not list(self._starts()):
            return
        for part in range(jobs):
            name, given = f"features{part}", (str(part), str(jobs))
            yield self._job(name, features.main, self.folder / name, self.keys, given)

    def _starts(self) -> Iterable[Job]:
        """A start of MLE and a judge for each seed."""
        for seed in self.seeds:
            for name, who in ((START, "captioner"), (JUDGE, "judge")):
                # A judge of the seed's own would begin as its captioner did.
                number = seed if name == START else seed + 1000
                keys = [*self.keys, f"train_file={self.parts[seed][who]}", f"seed={number}"]
                folder = self.of(seed, name)
                config = load_config(self.config, keys, {"output_dir": str(folder)})
                if not (is_trained(config) and _is_of(folder, config)):
                    # It refuses to go on with another run.
                    yield self._job(f"seed{seed}/{name}", train.main, folder, keys)

    def _tuned(self) -> Iterable[Job]:
        """A run a variant and seed, its test captions scored."""
        for seed in self.seeds:
            for variant in self.variants:
                folder, keys = self.of(seed, variant.name), self._tuning_keys(seed, variant)
                flags = {"output_dir": str(folder)}
                trained = load_config(self.config, keys, flags)
                scored = load_config(self.config, without_pretrained(keys), flags)
                if not is_done(trained, scored):
                    name = f"seed{seed}/{variant.name}"
                    yield self._job(name, train_and_score, folder, keys)

    def _tuning_keys(self, seed: int, variant: Variant) -> list[str]:
        own = [
            f"train_file={self.parts[seed]['captioner']}",
            f"pretrained={self.of(seed, START) / checkpoints.BEST}",
            f"seed={seed}",
            *variant.overrides,
        ]
        return [*self.keys, *self.tuning, *own]

    def _judged(self) -> Iterable[Job]:
        for seed in self.seeds:
            judging = self.of(seed, JUDGE)
            for name in (HUMANS, *(variant.name for variant in self.variants)):
                run = self.of(seed, name)
                if not is_answered(judging, run):
                    do = partial(judge.main, [str(judging), str(run)])
                    log = judging.with_name(f"judging_{name}.log")
                    yield Job(f"seed{seed}/{name}, judged", do, log)

    def _job(
        self,
        name: str,
        do: Callable,
        folder: Path,
        keys: Sequence[str],
        given: Sequence[str] = (),
    ) -> Job:
        arguments = [*given, "--config", self.config, "--output_dir", str(folder), *keys]
        return Job(name, partial(do, arguments), folder.with_name(f"{folder.name}.log"))


def _run(jobs: Iterable[Job], free: Sequence[dict[str, str]]) -> None:
    for name, why in run_in_slots(list(jobs), free).items():
        raise UserError(f"{name} failed: {why}")


def _is_of(folder: Path, config: Config) -> bool:
    """Whether the run in a folder is that of a configuration, wherever its data lie."""
    record = load_config(folder / "config.yaml")
    keys = [key for role in ("run", "batch", "length") for key in keys_of(role, type(record))]
    return all(getattr(record, key) == getattr(config, key) for key in keys)
