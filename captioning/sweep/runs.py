"""The runs of a sweep: finds the finished runs, and creates jobs for the others."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from captioning import train
from captioning.config import Config, load_config
from captioning.models import checkpoints
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.runtime.progress import log_line
from captioning.sweep.decodings import JUDGE, decode_run
from captioning.sweep.parallel_runs import run_in_slots, slots
from captioning.sweep.variants import Variant, varied_keys
from captioning.training.validation_history import is_done

PRETRAIN = "pretrain"
# Keys that the sweep sets, in addition to the keys that its variants change.
OWN_KEYS = ("output_dir", "resume")


class Sweep:
    """The runs of one configuration's variants, each in its own subfolder of `folder`.

    pretrain: a configuration that is trained first; the variants start from its best checkpoint.
    Raises UserError for an invalid key, and for a key that the sweep sets.
    """

    def __init__(
        self, config: str, pretrain: Optional[str], folder: Path, keys: Sequence[str], runs: list
    ):
        varied = {each.partition("=")[0] for run in runs for each in run.overrides}
        for key in (key.partition("=")[0] for key in keys):
            if key in {*OWN_KEYS, *varied, *varied_keys()} or (pretrain and key == "pretrained"):
                raise UserError(f"{key} is set by the sweep: leave it out")
        self.config, self.pretrain, self.folder, self.keys = config, pretrain, folder, list(keys)
        if pretrain:
            self._load(pretrain, PRETRAIN, keys)
        self.variants = runs
        self.trained: dict[str, Config] = {}
        self.scored: dict[str, Config] = {}
        for name, _, overrides, _ in runs:
            given = self._overrides(name, overrides)
            self.trained[name] = self._load(config, name, given)
            self.scored[name] = self._load(config, name, without_pretrained(given))
            if self.trained[name].reward:
                raise UserError(f"{config}: unset reward, since a sweep compares objectives")
        if any(c.split != self.trained[runs[0].name].split for c in self.trained.values()):
            raise UserError(
                f"{config}: split has no seed, so each seed would divide train_file differently: "
                "give split a seed"
            )

    def done(self) -> list[Variant]:
        """The variants that are trained and scored."""
        return [v for v in self.variants if is_done(self.trained[v.name], self.scored[v.name])]

    def train(self, parallel: Optional[int]) -> dict[str, str]:
        """Train and score the remaining runs; return {name: reason} of the failed runs.

        parallel: runs at a time; None for the default of `slots`.
        """
        finished = self.done()
        left = [variant for variant in self.variants if variant not in finished]
        log_line(f"runs in {self.folder}: {len(self.variants)}, of which {len(finished)} are done")
        if not left:
            return {}
        free = slots(self.trained[left[0].name].device, parallel)
        if self.pretrain:
            job = self._job(PRETRAIN, train.main, self.pretrain, ())
            failed = run_in_slots([job], free[:1])
            if failed:
                raise UserError(f"{PRETRAIN} failed: {failed[PRETRAIN]}")
        jobs = [self._job(v.name, train_and_score, self.config, v.overrides) for v in left]
        return run_in_slots(jobs, free)

    def decode(self, names: Sequence[str], parallel: Optional[int]) -> dict[str, str]:
        """Caption and score the finished runs by decodings; return failures as `train` does."""
        done = self.done()
        jobs = []
        for variant in done:
            judge = None
            if JUDGE in names:
                judge = str(checkpoints.best(self.folder / judge_of(variant, done)))
            do = partial(decode_run, self.scored[variant.name], names, judge)
            jobs.append(Job(variant.name, do, self.folder / f"{variant.name}.log"))
        return run_in_slots(jobs, slots(self.trained[done[0].name].device, parallel))

    def _job(self, name: str, do: Callable, config: str, overrides: Sequence[str]) -> Job:
        arguments = ["--config", config, "--output_dir", str(self.folder / name)]
        arguments += self._overrides(name, overrides)
        return Job(name, partial(do, arguments), self.folder / f"{name}.log")

    def _load(self, config: str, name: str, overrides: Sequence[str]) -> Config:
        return load_config(config, overrides, {"output_dir": str(self.folder / name)})

    def _overrides(self, name: str, overrides: Sequence[str]) -> list[str]:
        given = [*self.keys, *overrides]
        if self.pretrain and name != PRETRAIN:
            given.append(f"pretrained={self.folder / PRETRAIN / checkpoints.BEST}")
        return given


def judge_of(variant: Variant, done: Sequence[Variant]) -> str:
    """The name of a run of MLE whose seed follows the variant's. Raises UserError."""
    seeds = [v for v in done if v.weight == 1]
    own = variant.overrides[-1] if variant.overrides[-1].startswith("seed=") else None
    others = [v for v in seeds if v.overrides[-1] != own] if own else []
    if not others:
        raise UserError(
            "decoding judge needs runs of MLE with two seeds or more: --seeds 2 --mle 1"
        )
    later = [v for v in others if v.overrides[-1] > own]
    return (later or others)[0].name


def train_and_score(arguments: Sequence[str]) -> int:
    """Train a run, then caption and score the test split, unless the run was asked to stop.

    arguments: the command line of captioning.train. Returns its exit code.
    """
    code = train.main(arguments)
    if code or signals.stop_requested():
        return code
    return train.main([*without_pretrained(arguments), "--evaluate", "--eval_split", "test"])


def without_pretrained(arguments: Sequence[str]) -> list[str]:
    """Remove `pretrained`, since evaluation would use these weights instead of the run's best."""
    return [argument for argument in arguments if not argument.startswith("pretrained=")]
