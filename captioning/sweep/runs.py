"""The runs of a sweep: finds which are finished, and starts jobs for the others."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Callable, Optional

from captioning import train
from captioning.config import Config
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
from captioning.training.validation_history import is_scored, is_trained

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
        variants: Sequence[Variant],
    ):
        keys_set = {
            *(override.partition("=")[0] for variant in variants for override in variant.overrides),
            *(*SWEEP_KEYS, *varied_keys(), *(["pretrained"] if pretrain else [])),
        }
        for key in (key.partition("=")[0] for key in keys):
            if key in keys_set:
                raise UserError(f"{key} is set by the sweep: leave it out")
        self.folder, self.variants = folder, variants
        start = []
        # {name: the command line of captioning.train} of all runs
        self.arguments: dict[str, list[str]] = {}
        if pretrain:
            self.arguments[PRETRAIN] = self._arguments(pretrain, PRETRAIN, keys)
            read_config(self.arguments[PRETRAIN])
            start = [f"pretrained={folder / PRETRAIN / checkpoints.BEST}"]
        self.trained: dict[str, Config] = {}
        self.scored: dict[str, Config] = {}
        for variant in variants:
            name = variant.name
            arguments = self._arguments(config, name, [*keys, *variant.overrides, *start])
            self.arguments[name] = arguments
            self.trained[name] = read_config(arguments)
            self.scored[name] = read_config(remove_pretrained(arguments))
            if self.trained[name].reward:
                raise UserError(f"{config}: unset reward, since a sweep compares objectives")
        if len({str(trained.split) for trained in self.trained.values()}) > 1:
            raise UserError(
                f"{config}: split has no seed, so each seed would divide train_file differently: "
                "give split a seed"
            )

    def done(self) -> list[Variant]:
        """Return the variants that are trained and scored."""
        return [
            v
            for v in self.variants
            if is_scored(self.scored[v.name]) and is_trained(self.trained[v.name])
        ]

    def train(self, parallel: Optional[int]) -> dict[str, str]:
        """Train and score the remaining runs; return {name: reason} of the failed runs.

        parallel: how many run at a time, see `job_slots`. Raises UserError if the pre-training
        fails.
        """
        done = self.done()
        pending = [variant.name for variant in self.variants if variant not in done]
        log_line(f"runs in {self.folder}: {len(self.variants)}, of which {len(done)} are done")
        if not pending:
            return {}
        slots = job_slots(self.trained[pending[0]].device, parallel)
        if PRETRAIN in self.arguments:
            job = self._job(PRETRAIN, partial(train.main, self.arguments[PRETRAIN]))
            for name, reason in run_in_slots([job], slots[:1]).items():
                raise UserError(f"{name} failed: {reason}")
        jobs = []
        for name in pending:
            training = self.arguments[name]
            program = partial(train_and_score, training, remove_pretrained(training))
            jobs.append(self._job(name, program))
        return run_in_slots(jobs, slots)

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
            scoring = remove_pretrained(self.arguments[variant.name])
            jobs.append(self._job(variant.name, partial(decode_and_score, scoring, names, judge)))
        return run_in_slots(jobs, job_slots(self.trained[done[0].name].device, parallel))

    def _job(self, name: str, program: Callable[[], Optional[int]]) -> Job:
        return Job(name, program, self.folder / f"{name}.log")

    def _arguments(self, config: str, name: str, overrides: Sequence[str]) -> list[str]:
        return ["--config", config, "--output_dir", str(self.folder / name), *overrides]


def read_config(arguments: Sequence[str]) -> Config:
    """Return the configuration of a command line of captioning.train. Raises UserError."""
    return train.read_config(train.parse_arguments(arguments))


def train_and_score(training: Sequence[str], scoring: Sequence[str]) -> int:
    """Train a run, then caption and score the test split, unless that is done.

    training, scoring: command lines of captioning.train. Returns its exit code. Stops after the
    training if a stop is requested.
    """
    code = train.main(training)
    if code or signals.stop_requested() or is_scored(read_config(scoring)):
        return code
    return train.main([*scoring, "--evaluate", "--eval_split", "test"])


def decode_and_score(arguments: Sequence[str], names: Sequence[str], judge: Optional[str]) -> int:
    """Call `decode_run` with one Java process for METEOR. Return an exit code.

    arguments: the command line of captioning.train with which the run is scored.
    """

    def program() -> None:
        with shared_process():
            decode_run(read_config(arguments), names, judge)

    return exit_code(program)


def choose_judge(variant: Variant, done: Sequence[Variant]) -> str:
    """Return the name of the MLE run that judges a variant: the one with the next larger seed.

    For the largest seed, it is the first MLE run with another seed. Raises UserError if there is
    none.
    """
    others = [run for run in done if run.weight == 1 and run.seed != variant.seed]
    if not others:
        raise UserError(
            "decoding judge needs runs of MLE with two seeds or more: --seeds 2 --mle 1"
        )
    return min(others, key=lambda run: (run.seed < variant.seed, run.seed)).name


def remove_pretrained(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without `pretrained`, which evaluation would use instead of the best."""
    return [argument for argument in arguments if not argument.startswith("pretrained=")]
