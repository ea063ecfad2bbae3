"""The runs of a sweep: finds which are finished, and starts jobs for the others."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from captioning import train
from captioning.config import Config, load_config
from captioning.metrics.meteor import shared_process
from captioning.models import checkpoints
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from captioning.runtime.job_runner import Job
from captioning.runtime.program import exit_code
from captioning.runtime.progress import log_line
from captioning.sweep.decodings import JUDGE, decode_run
from captioning.sweep.parallel_runs import job_slots, run_in_slots
from captioning.sweep.variants import Variant, varied_keys
from captioning.training.validation_history import is_done

PRETRAIN = "pretrain"
# Keys that the sweep sets, in addition to the keys that its variants change.
SWEEP_KEYS = ("output_dir", "resume")


class Sweep:
    """The runs of one configuration's variants, each in its own subfolder of `folder`.

    keys: overrides of all runs, as key=value. pretrain: a configuration that is trained first; the
    variants start from its best checkpoint. Raises UserError for an invalid key or one that the
    sweep sets. trained, scored: {variant's name: configuration of its training or scoring}.
    """

    def __init__(
        self,
        config: str,
        pretrain: Optional[str],
        folder: Path,
        keys: Sequence[str],
        variants: list,
    ):
        varied = {
            override.partition("=")[0] for variant in variants for override in variant.overrides
        }
        for key in (key.partition("=")[0] for key in keys):
            if key in {*SWEEP_KEYS, *varied, *varied_keys()} or (pretrain and key == "pretrained"):
                raise UserError(f"{key} is set by the sweep: leave it out")
        self.config, self.pretrain, self.folder, self.keys = config, pretrain, folder, list(keys)
        if pretrain:
            self._load(pretrain, PRETRAIN, keys)
        self.variants = variants
        self.trained: dict[str, Config] = {}
        self.scored: dict[str, Config] = {}
        for name, _, overrides, _ in variants:
            all_overrides = self._overrides(name, overrides)
            self.trained[name] = self._load(config, name, all_overrides)
            self.scored[name] = self._load(config, name, remove_pretrained(all_overrides))
            if self.trained[name].reward:
                raise UserError(f"{config}: unset reward, since a sweep compares objectives")
        if any(c.split != self.trained[variants[0].name].split for c in self.trained.values()):
            raise UserError(
                f"{config}: split has no seed, so each seed would divide train_file differently: "
                "give split a seed"
            )

    def done(self) -> list[Variant]:
        """Return the variants that are trained and scored."""
        return [v for v in self.variants if is_done(self.trained[v.name], self.scored[v.name])]

    def train(self, parallel: Optional[int]) -> dict[str, str]:
        """Train and score the remaining runs; return {name: reason} of the failed runs.

        parallel: how many run at a time, see `job_slots`. Raises UserError if the pre-training
        fails.
        """
        done = self.done()
        pending = [variant for variant in self.variants if variant not in done]
        log_line(f"runs in {self.folder}: {len(self.variants)}, of which {len(done)} are done")
        if not pending:
            return {}
        free_slots = job_slots(self.trained[pending[0].name].device, parallel)
        if self.pretrain:
            job = self._job(PRETRAIN, train.main, self.pretrain, ())
            failed = run_in_slots([job], free_slots[:1])
            if failed:
                raise UserError(f"{PRETRAIN} failed: {failed[PRETRAIN]}")
        jobs = [self._job(v.name, train_and_score, self.config, v.overrides) for v in pending]
        return run_in_slots(jobs, free_slots)

    def decode(self, names: Sequence[str], parallel: Optional[int]) -> dict[str, str]:
        """Caption and score the finished runs with each decoding; return failures as `train` does.

        names: of the decodings. parallel: see `train`.
        """
        done = self.done()
        jobs = []
        for variant in done:
            judge = None
            if JUDGE in names:
                judge = str(checkpoints.best(self.folder / choose_judge(variant, done)))
            decode = partial(decode_and_score, self.scored[variant.name], names, judge)
            jobs.append(Job(variant.name, decode, self.folder / f"{variant.name}.log"))
        return run_in_slots(jobs, job_slots(self.trained[done[0].name].device, parallel))

    def _job(self, name: str, program: Callable, config: str, overrides: Sequence[str]) -> Job:
        arguments = ["--config", config, "--output_dir", str(self.folder / name)]
        arguments += self._overrides(name, overrides)
        return Job(name, partial(program, arguments), self.folder / f"{name}.log")

    def _load(self, config: str, name: str, overrides: Sequence[str]) -> Config:
        return load_config(config, overrides, {"output_dir": str(self.folder / name)})

    def _overrides(self, name: str, overrides: Sequence[str]) -> list[str]:
        all_overrides = [*self.keys, *overrides]
        if self.pretrain and name != PRETRAIN:
            all_overrides.append(f"pretrained={self.folder / PRETRAIN / checkpoints.BEST}")
        return all_overrides


def decode_and_score(config: Config, names: Sequence[str], judge: Optional[str]) -> int:
    """Call `decode_run` with one Java process for METEOR. Return an exit code."""

    def program() -> None:
        with shared_process():
            decode_run(config, names, judge)

    return exit_code(program)


def choose_judge(variant: Variant, done: Sequence[Variant]) -> str:
    """Return the name of the MLE run that judges a variant: the one with the next larger seed.

    For the largest seed, it is the first MLE run with another seed. Raises UserError if there is
    none.
    """
    mle_runs = [run for run in done if run.weight == 1]
    own_seed = _seed_of(variant)
    candidates = [] if own_seed is None else [run for run in mle_runs if _seed_of(run) != own_seed]
    if not candidates:
        raise UserError(
            "decoding judge needs runs of MLE with two seeds or more: --seeds 2 --mle 1"
        )
    later_seeds = [run for run in candidates if _seed_of(run) > own_seed]
    return (later_seeds or candidates)[0].name


def _seed_of(variant: Variant) -> Optional[int]:
    key, _, value = variant.overrides[-1].partition("=")
    return int(value) if key == "seed" else None


def train_and_score(arguments: Sequence[str]) -> int:
    """Train a run, then caption and score the test split, unless the run was asked to stop.

    arguments: the command line of captioning.train. Returns its exit code.
    """
    code = train.main(arguments)
    if code or signals.stop_requested():
        return code
    return train.main([*remove_pretrained(arguments), "--evaluate", "--eval_split", "test"])


def remove_pretrained(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without `pretrained`, which evaluation would use instead of the best."""
    return [argument for argument in arguments if not argument.startswith("pretrained=")]
