"""Finds which runs of a sweep are finished, and starts jobs for the remaining runs."""

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
from captioning.runtime.jobs import Job
from captioning.runtime.program import run_program
from captioning.runtime.progress import log_line
from captioning.sweep.decodings import JUDGE, decode_run
from captioning.sweep.parallel_runs import job_slots, raise_failures, run_in_slots
from captioning.sweep.variants import Variant, overridden_keys, varied_keys
from captioning.training.validation_history import is_scored, is_trained

PRETRAIN = "pretrain"
# Keys that the sweep sets, in addition to the keys that its variants change.
SWEEP_KEYS = ("output_dir", "resume")


class Sweep:
    """The runs of one configuration's variants, each in its own subfolder of `folder`.

    config: the YAML file of the configuration. overrides: for all runs, as key=value.
    pretrain: a YAML file that is trained first; the variants start from its best checkpoint. Raises
    UserError if a key is invalid, or if the sweep itself sets it.

    Attributes: `trained` is {variant's name: configuration for training}, `scored` is the same for
    captioning and scoring, and `arguments` has the command lines.
    """

    def __init__(
        self,
        config: str,
        pretrain: Optional[str],
        folder: Path,
        overrides: Sequence[str],
        variants: Sequence[Variant],
    ):
        keys_of_sweep = {*SWEEP_KEYS, *varied_keys(), *overridden_keys(variants)}
        if pretrain:
            keys_of_sweep.add("pretrained")
        for override in overrides:
            key = override.partition("=")[0]
            if key in keys_of_sweep:
                raise UserError(f"{key} is set by the sweep: leave it out")
        self.folder, self.variants = folder, variants
        initial_weights = []  # the override that sets them
        # {run's name: its command line of captioning.train}; the key PRETRAIN is the pre-training
        self.arguments = {}
        if pretrain:
            self.arguments[PRETRAIN] = self._arguments(pretrain, PRETRAIN, overrides)
            read_config(self.arguments[PRETRAIN])
            initial_weights = [f"pretrained={folder / PRETRAIN / checkpoints.BEST}"]
        self.trained = {}
        self.scored = {}
        for variant in variants:
            name = variant.name
            all_overrides = [*overrides, *variant.overrides, *initial_weights]
            arguments = self._arguments(config, name, all_overrides)
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

        def is_done(name):
            return is_scored(self.scored[name]) and is_trained(self.trained[name])

        return [variant for variant in self.variants if is_done(variant.name)]

    def train(self, parallel: Optional[int]) -> dict[str, str]:
        """Train and score the remaining runs; return {name: reason} of the failed runs.

        parallel: the number of runs at a time, see `job_slots`. If `pretrain` is set, it is trained
        first. Raises UserError if this fails.
        """
        done = self.done()
        pending = [variant.name for variant in self.variants if variant not in done]
        log_line(f"runs in {self.folder}: {len(self.variants)}, of which {len(done)} are done")
        if not pending:
            return {}
        slots = job_slots(self.trained[pending[0]].device, parallel)
        if PRETRAIN in self.arguments:
            job = self._job(PRETRAIN, partial(train.main, self.arguments[PRETRAIN]))
            raise_failures(run_in_slots([job], slots[:1]))
        jobs = []
        for name in pending:
            training = self.arguments[name]
            program = partial(train_and_score, training, remove_pretrained(training))
            jobs.append(self._job(name, program))
        return run_in_slots(jobs, slots)

    def decode(self, names: Sequence[str], parallel: Optional[int]) -> dict[str, str]:
        """Caption and score the finished runs with each decoding; return failures as `train` does.

        names: the names of the decodings. parallel: the number of runs at a time.
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
    """Train a run, then caption and score the test split unless it is scored already.

    training, scoring: command lines of captioning.train for the two parts. If a stop is requested,
    the second part is left out. Returns the exit code of captioning.train.
    """
    code = train.main(training)
    if code or signals.stop_requested() or is_scored(read_config(scoring)):
        return code
    return train.main([*scoring, "--evaluate", "--eval_split", "test"])


def decode_and_score(arguments: Sequence[str], names: Sequence[str], judge: Optional[str]) -> int:
    """Call `decode_run`; all decodings share one Java process for METEOR. Return an exit code.

    arguments: the command line of captioning.train that captions and scores the run. names, judge:
    see `decode_run`.
    """

    def program():
        with shared_process():
            decode_run(read_config(arguments), names, judge)

    return run_program(program)


def choose_judge(variant: Variant, done: Sequence[Variant]) -> str:
    """Return the name of the MLE run that judges a variant.

    It is the MLE run with the next larger seed. If the variant has the largest seed, it is the MLE
    run with the smallest seed. Raises UserError if no MLE run has another seed.
    """
    others = [run for run in done if run.weight == 1 and run.seed != variant.seed]
    if not others:
        raise UserError(
            "decoding judge needs runs of MLE with two seeds or more: --seeds 2 --mle 1"
        )
    return min(others, key=lambda run: (run.seed < variant.seed, run.seed)).name


def remove_pretrained(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the override of `pretrained`.

    With this override, evaluation would caption with the `pretrained` weights instead of the run's
    best checkpoint.
    """
    return [argument for argument in arguments if not argument.startswith("pretrained=")]
