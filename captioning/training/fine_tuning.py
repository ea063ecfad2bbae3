"""Fine-tunes a captioner: each epoch trains, saves a checkpoint, validates and selects the best."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Optional

import torch

from captioning.config import Config
from captioning.config.objectives import describe_training
from captioning.data.loader import Batch, Prefetcher
from captioning.data.randomness import derived_seed
from captioning.data.shards import Shards
from captioning.data.sources import check_images, read_split
from captioning.metrics.metric_sum import MetricSum
from captioning.models.build import preprocessing_of
from captioning.models.precision import Precision
from captioning.models.prompts import check_prompts
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress
from captioning.training import sharding
from captioning.training.nonfinite_report import NotFiniteError, raise_nonfinite
from captioning.training.optimizer import build_optimizer, scheduled_rate
from captioning.training.output_folder import OutputFolder
from captioning.training.resume import check_items, resume_content
from captioning.training.run_log import RunLog, record_run
from captioning.training.run_state import Progress, RunState, progress_of
from captioning.training.selection import (
    best_epoch,
    check_select,
    keep_selected,
    resolve_select,
    summary,
)
from captioning.training.setup import build_captioner, distribute, mean_image, training_batches
from captioning.training.split_evaluation import SplitEvaluation, read_scores
from captioning.training.step import COUNTS, StepResult, TrainingStep
from captioning.training.validation_history import (
    check_monitor,
    count_plateaus,
    evaluation_name,
    metric_values,
    reason_finished,
)


class FineTuning:
    """One training run, on one or several devices. The constructor sets up; `run` trains.

    The constructor checks all requirements before it loads a model, and writes no file before
    `resume_content` has decided whether the run resumes.
    """

    def __init__(self, config: Config, device: torch.device):
        if config.precision == "int8":
            raise UserError(
                "precision is int8, which is only for inference; train in fp32, bf16 or fp16"
            )
        sharding.check_sharding(config)
        self.config, self.device = config, device
        self.output = OutputFolder(config.output_dir)
        self.folder = self.output.folder
        self.precision = Precision(config.precision, device)
        self._read_data()
        checkpoint = self._begin_or_resume()
        self._build_model(checkpoint)
        self.log = RunLog(self.folder, self.progress.epoch, self._steps_done())

    def run(self) -> None:
        """Train until all epochs are done or the run stops early. Closes the run at the end.

        Raises UserError, and Stopped after a signal.
        """
        try:
            if self.progress.epoch and not self.progress.steps:
                # The run may have stopped between the last checkpoint and its validation.
                self._validate(self.progress.epoch - 1)
            for epoch in range(self.progress.epoch, self.config.max_epoch):
                if reason := self._reason_finished(epoch):
                    if not self.finished_reason:  # else `resume_content` has logged the reason
                        log_line(reason)
                    break
                self._train_epoch(epoch)
                self.state.save_epoch(self.folder, epoch)
                self._upload()
                self._validate(epoch)
            if not self.finished_reason:
                for line in summary(self.folder):
                    log_line(line)
        finally:
            self.close()
        self.output.upload()

    def close(self) -> None:
        """Stop the loader's workers, close the log, and free DistributedDataParallel.

        `distributed.stop` says why DistributedDataParallel has to be freed.
        """
        self.loader.close()
        self.log.close()
        self.step.model = self.learner

    def _reason_finished(self, epoch: int) -> Optional[str]:
        """Return why the run ends before `epoch`; None if it continues. Rank 0 decides."""
        return distributed.broadcast_from_main(reason_finished(self.config, self.folder, epoch))

    # Training

    def _train_epoch(self, epoch: int) -> None:
        config, first_step = self.config, epoch * self.steps
        self.captioner.begin_epoch(epoch)
        self.step.model.train()
        if self.progress.epoch != epoch:
            self.progress = Progress(epoch)
        batches = self._batches()
        values = metric_values(self.folder, epoch, config.monitor)
        plateaus = distributed.broadcast_from_main(count_plateaus(values, config.lr_patience))
        sums = Counter(self.progress.sums)
        images = config.batch_size * distributed.world_size() * config.accumulation_steps
        description = f"epoch {epoch + 1}/{config.max_epoch}"
        with progress(self.steps * images, description) as bar:
            bar.update(self.progress.steps * images)
            for step in range(self._steps_done(), first_step + self.steps):
                rate = self._set_learning_rate(epoch, step, plateaus)
                result = self._optimizer_step(batches, step)
                stop = result.sums.pop("stop_requested")
                sums.update(result.sums)
                self.progress = Progress(epoch, step + 1 - first_step, dict(sums))
                means = _token_means(result.sums)
                bar.set_postfix(_formatted(means), refresh=False)
                bar.update(images)
                if (step + 1) % config.log_every == 0:
                    values = {**means, "learning_rate": rate, **result.values}
                    self.log.write("step", step + 1, values, epoch=epoch)
                if stop or self._is_save_due(step + 1):
                    self.state.save_step(self.folder, self.progress, step + 1)
                    self._upload()
                if stop:
                    raise signals.Stopped
        means, skipped = _token_means(sums), int(sums["skipped_images"])
        self.log.write("epoch", epoch, means, skipped_images=skipped)
        parts = ", ".join(f"{name} {value}" for name, value in _formatted(means).items())
        log_line(f"{description}: {parts}" + (f", {skipped} unreadable images" if skipped else ""))

    def _batches(self) -> Iterator[Batch]:
        """Return the remaining batches of the epoch, on the device."""
        epoch, done, _ = self.progress
        per_step = self.config.accumulation_steps
        self.loader.set_epoch(epoch, done * per_step)
        remaining = islice(self.loader, (self.steps - done) * per_step)
        return iter(Prefetcher(remaining, self.device, self.preprocessing.normalise))

    def _steps_done(self) -> int:
        return self.progress.epoch * self.steps + self.progress.steps

    def _set_learning_rate(self, epoch: int, step: int, plateaus: int) -> float:
        rate = scheduled_rate(self.config, epoch, step, self.steps, plateaus)
        for group, factor in zip(self.optimizer.param_groups, self.rate_factors):
            group["lr"] = rate * factor
        return rate

    def _optimizer_step(self, batches: Iterator[Batch], step: int) -> StepResult:
        """Take a step. If its loss or gradient is not finite, save the state and end the run.

        The saved state is the one before the step. step: counted from 0 over all epochs.
        """
        try:
            return self.step(batches, step)
        except NotFiniteError as error:
            resume_hint = " with resume=auto" if self.config.resume == "never" else ""
            repeat = f"the same command{resume_hint} repeats the step"
            try:
                # In the first step of an epoch, the previous epoch's checkpoint has this state.
                if self.progress.steps:
                    self.state.save_step(self.folder, self.progress, step)
                self._upload()
            except UserError as save_error:
                repeat = str(save_error)
            batches = self.step.batches
            raise_nonfinite(str(error), step + 1, batches, self.config, repeat)

    def _is_save_due(self, steps_done: int) -> bool:
        """Return whether to save a checkpoint within an epoch. steps_done: over all epochs."""
        every = self.config.checkpoint_every
        return every is not None and steps_done % every == 0 and steps_done % self.steps != 0

    def _upload(self) -> None:
        """Upload new files, if the output folder is in an object store."""
        self.log.flush()
        self.output.upload()

    # After an epoch

    def _validate(self, epoch: int) -> None:
        """Score the validation split if this epoch is due, and keep the best checkpoint.

        Every `eval_every`-th epoch and the last epoch are due. An epoch that is already scored is
        not scored again.
        """
        name = evaluation_name(epoch)
        due = (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.max_epoch
        if due and distributed.broadcast_from_main(read_scores(self.folder, name)) is None:
            captioner = sharding.unsharded(self.captioner, self.config, self.device)
            # Seeded so that a resumed run samples the same captions.
            torch.manual_seed(
                derived_seed("evaluation", self.config.seed, epoch, distributed.rank())
            )
            self.evaluation.run(captioner, name)
        distributed.run_on_main(lambda: self._select(epoch, due))
        self._upload()

    def _select(self, epoch: int, due: bool) -> None:
        """Keep the best checkpoint, and log the epoch's scores. Only on rank 0.

        due: whether the epoch is validated (see `_validate`).
        """
        line = keep_selected(self.config.select, self.folder, epoch + 1)
        scores = read_scores(self.folder, evaluation_name(epoch))
        if scores is not None and not self.log.has("val", epoch):
            self.log.write("val", epoch, scores, selected=best_epoch(self.folder))
            monitor = self.config.monitor
            if self.config.monitors and MetricSum.parse(monitor).of(scores) is None:
                log_line(f"{self.config.monitors} ignores this epoch, which has no {monitor}")
        if line and due:
            log_line(line)

    # Set-up

    def _read_data(self) -> None:
        """Read the validation split and build its metrics, then read the training split."""
        config = self.config
        self.evaluation = SplitEvaluation(config, "val", self.folder, self.device)
        check_monitor(config, self.evaluation)
        check_select(config, self.evaluation)
        self.preprocessing = preprocessing_of(config)
        with distributed.first_on_each_machine():
            self.samples = read_split(config, "train")
        self.loader = training_batches(config, self.samples, self.preprocessing)
        self.steps = len(self.loader) // config.accumulation_steps  # optimizer steps per epoch
        if not self.steps:
            raise UserError(
                f"accumulation_steps is {config.accumulation_steps}, but an epoch has only "
                f"{len(self.loader)} batches; lower accumulation_steps or batch_size"
            )
        val = self.evaluation.samples
        distributed.run_on_main(lambda: check_images(config, self.samples, val))

    def _begin_or_resume(self) -> Optional[dict[str, Any]]:
        """Return the content of the checkpoint to resume from, or None for a new run.

        Unless the run has finished, this also builds the rewards, if any, and writes run.json and
        config.yaml.
        """
        self.output.begin()
        checkpoint = resume_content(self.config, self.output)
        self.config = resolve_select(self.config, checkpoint, self.evaluation)
        self.progress = progress_of(checkpoint) if checkpoint else Progress()
        self.finished_reason = self._reason_finished(self.progress.epoch)
        self.rewards = None
        if not self.finished_reason:
            check_items(self.config, checkpoint or {}, len(self.loader.dataset))
            if self.config.reward:
                from captioning.training.self_critical import build_rewards

                self.rewards = build_rewards(self.config, self.samples, self.device)
            record_run(self.config, self.folder)
            self.output.upload()
            log_line(describe_training(self.config))
        return checkpoint

    def _build_model(self, checkpoint: Optional[dict[str, Any]]) -> None:
        """Build captioner, optimizer and step. With a checkpoint, restore their state from it.

        checkpoint: the content of the checkpoint to resume from, or None.
        """
        config = self.config
        self.captioner = build_captioner(config, checkpoint)
        has_shards = isinstance(self.samples, Shards)
        annotated = self.samples.with_prompts() if has_shards else self.samples
        check_prompts(annotated, self.captioner, config, "max_tokens")
        check_prompts(self.evaluation.samples, self.captioner, config, "max_length")
        null = self.captioner.null_image
        # Skipped if the weights of `pretrained` include a mean image.
        if config.null_image == "mean" and not checkpoint and not null.image.any():
            null.image.copy_(mean_image(config, self.samples, self.preprocessing))
        self.learner = self.captioner
        if self.rewards:
            from captioning.training.self_critical import SelfCritical, load_start

            with distributed.first_on_each_machine():
                start = load_start(config, self.device)
            self.learner = SelfCritical(self.captioner, config, self.rewards, start)
        model = distribute(self.learner, self.captioner, config, self.device, self.precision.dtype)
        self.optimizer, self.rate_factors = build_optimizer(self.captioner, config)
        self.step = TrainingStep(config, model, self.learner, self.optimizer, self.precision)
        self.state = RunState(
            config, self.captioner, self.optimizer, self.precision, len(self.loader.dataset)
        )
        if checkpoint:
            self.state.restore(checkpoint)


def _token_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return means per token: each sum divided by sums["tokens"], without "tokens" and COUNTS."""
    tokens = max(sums["tokens"], 1)
    return {n: total / tokens for n, total in sums.items() if n not in ("tokens", *COUNTS)}


def _formatted(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.3f}" for name, value in values.items()}
