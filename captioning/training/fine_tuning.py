"""Fine-tuning, step by step: set up, train an epoch, save it, evaluate it, keep the best."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from baselines import RecurrentDecoder, set_teacher_forcing, teacher_forcing
from captioning.config import Config
from captioning.data import (
    Prefetcher,
    TrainingDataset,
    read_split,
    training_loader,
    training_transform,
)
from captioning.data.randomness import derived_seed
from captioning.models import checkpoints
from captioning.models.build import captioner_from
from captioning.models.classic_model import check_batch
from captioning.models.precision import Precision
from captioning.runtime import distributed, stopping
from captioning.runtime.errors import UserError
from captioning.runtime.progress import progress, say
from captioning.runtime.watchdog import Watchdog
from captioning.training.not_finite import Inquiry, Taken, what_is_not_finite
from captioning.training.optimiser import build_optimizer, clip_gradients
from captioning.training.resume import starting_point
from captioning.training.run_log import RunLog, record_run
from captioning.training.run_state import Place, RunState, place_of
from captioning.training.schedule import scheduled_rate
from captioning.training.split_evaluation import SplitEvaluation, read_scores
from captioning.training.validation_history import (
    best_epoch,
    bleu_history,
    check_bleu,
    evaluation_name,
    plateaus,
    why_over,
)

COUNTED = ("skipped_images", "asked_to_stop")  # what is summed over batches and not over tokens


class FineTuning:
    """One run of a configuration on one device or many; `run` does all of it."""

    def __init__(self, config: Config, device: torch.device):
        self.config, self.device = config, device
        self.folder = Path(config.output_dir)
        self.evaluation = SplitEvaluation(config, "val", self.folder, device)
        check_bleu(config, self.evaluation.unavailable)
        self.loader = self._build_loader()
        self.steps = len(self.loader) // config.accumulation_steps  # optimiser steps an epoch
        self.precision = Precision(config.precision, device)
        checkpoint = starting_point(config)
        epochs = place_of(checkpoint).epoch if checkpoint else 0
        self.over = why_over(config, self.folder, epochs) if checkpoint else None
        if not self.over:
            record_run(config, self.folder)  # a run that is over keeps the record of how it ran
        self.captioner = self._build_captioner(checkpoint)
        self.model = self._wrap(self.captioner)
        self.optimizer, self.rate_shares = build_optimizer(self.captioner, config)
        self.state = RunState(config, self.captioner, self.optimizer, self.precision)
        self.place = self.state.restore(checkpoint) if checkpoint else Place()
        self.after_epoch = checkpoint is not None and "within" not in checkpoint
        began = self.place if checkpoint else None
        self.inquiry = Inquiry(self.state, self.loader, self.precision, began)
        self.bleu: list[float] = []  # of the validations so far
        done = self.place.epoch * self.steps + self.place.steps
        self.log = RunLog(self.folder, self.place.epoch, done)
        self.watchdog = Watchdog(config.rank_timeout)

    def run(self) -> None:
        try:
            if self.after_epoch:
                self._evaluate(self.place.epoch - 1)  # if the run ended before it could
            for epoch in range(self.place.epoch, self.config.max_epoch):
                over = distributed.broadcast_from_main(why_over(self.config, self.folder, epoch))
                if over:
                    if over != self.over:  # not yet said
                        say(over)
                    break
                self.bleu = distributed.broadcast_from_main(bleu_history(self.folder, epoch))
                self._train_epoch(epoch)
                self.state.save_epoch(self.folder, epoch)
                self._evaluate(epoch)
        finally:
            self.close()

    def close(self) -> None:
        """Close the log and let go of the distributed model; see `distributed.stop`."""
        self.watchdog.end()
        self.log.close()
        self.model = self.captioner

    # Set-up

    def _build_loader(self):
        config = self.config
        with distributed.first_on_each_machine():
            samples = read_split(config, "train")
        dataset = TrainingDataset(
            samples,
            config.image_root,
            training_transform(config.image_size, config.augmentation),
            config.seed,
            config.captions_per_image,
            config.max_words,
            config.skip_bad_images,
        )
        loader = training_loader(
            dataset,
            config.batch_size,
            config.seed,
            distributed.rank(),
            distributed.world_size(),
            config.num_workers,
            config.bucket_batches,
        )
        if len(loader) < config.accumulation_steps:
            raise UserError(
                f"accumulation_steps is {config.accumulation_steps}, but an epoch has only "
                f"{len(loader)} batches; lower it or batch_size"
            )
        return loader

    def _build_captioner(self, resumed: Optional[dict[str, Any]]) -> nn.Module:
        pretrained = None if resumed else self.config.pretrained
        with distributed.first_on_each_machine():
            captioner, loaded = captioner_from(self.config, pretrained, resumed)
        check_batch(self.config, captioner)
        if not resumed:
            say(loaded)
        return captioner.to(self.device)

    def _wrap(self, captioner: nn.Module) -> nn.Module:
        if self.config.compile:
            for part in captioner.children():
                # A loop over words would be compiled anew for every length.
                if not isinstance(part, RecurrentDecoder):
                    part.compile()
        group = distributed.limit_waits(self.config.rank_timeout)
        if group is None:
            return captioner
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(captioner, device_ids=devices, process_group=group)

    # Training

    def _train_epoch(self, epoch: int) -> None:
        config = self.config
        own_words = teacher_forcing(config.teacher_forcing, epoch, config.teacher_forcing_k)
        set_teacher_forcing(self.captioner, own_words)
        self.model.train()
        place = self.place if self.place.epoch == epoch else Place(epoch)
        per_step, first = config.accumulation_steps, epoch * self.steps + place.steps
        self.loader.set_epoch(epoch, place.steps * per_step)
        rest = islice(self.loader, (self.steps - place.steps) * per_step)
        batches = iter(Prefetcher(rest, self.device))
        images = config.batch_size * distributed.world_size() * per_step
        description = f"epoch {epoch + 1}/{config.max_epoch}"
        summed, self.place = Counter(place.sums), place
        with progress(self.steps * images, description) as bar:
            bar.update(place.steps * images)
            for step in range(first, (epoch + 1) * self.steps):
                self.watchdog.beat()
                rate = self._set_learning_rate(epoch, step)
                sums, norm = self._optimiser_step(batches, step)
                stop = sums.pop("asked_to_stop")
                summed.update(sums)
                self.place = Place(epoch, step + 1 - epoch * self.steps, dict(summed))
                means = _means(sums)
                bar.set_postfix(_rounded(means), refresh=False)
                bar.update(images)
                if (step + 1) % config.log_every == 0:
                    values = {**means, "learning_rate": rate, "grad_norm": norm}
                    self.log.write("step", step + 1, values, epoch=epoch)
                if stop or self._is_checkpoint(step + 1):
                    self.state.save_step(self.folder, self.place, step + 1)
                if stop:
                    raise stopping.Stopped
        self.watchdog.pause()
        means, skipped = _means(summed), int(summed["skipped_images"])
        self.log.write("epoch", epoch, means, skipped_images=skipped)
        parts = ", ".join(f"{name} {value}" for name, value in _rounded(means).items())
        say(f"{description}: {parts}" + (f", {skipped} unreadable images" if skipped else ""))

    def _is_checkpoint(self, done: int) -> bool:
        """Whether one is due after so many steps; the end of an epoch has its own."""
        every = self.config.checkpoint_every
        return every is not None and done % every == 0 and done % self.steps != 0

    def _optimiser_step(self, batches, step: int) -> tuple[dict[str, float], float]:
        """One step on `accumulation_steps` batches a process.

        Every labelled token counts alike, whichever batch or process it is in: each batch's mean
        is weighted by its tokens, relative to those of the first batch on all processes that has
        any, and the gradient put right at the end where there were further ones. Returns sums over
        all by name (tokens, parts of the loss, COUNTED), and the gradient's norm.
        """
        count, scaler = self.config.accumulation_steps, self.precision.scaler
        totals, taken = [], []
        reference = torch.zeros((), dtype=torch.float64, device=self.device)
        for micro in range(count):
            batch = next(batches)
            last, number = micro == count - 1, step * count + micro
            seed = derived_seed("step", self.config.seed, number, distributed.rank())
            torch.manual_seed(seed)
            quiet = nullcontext() if last or self.model is self.captioner else self.model.no_sync()
            with quiet:
                with self.precision.autocast():
                    output = self.model(batch["image"], batch["captions"])
                parts = {"loss": output.loss.detach(), **output.parts}
                taken.append(Taken.of(batch, seed, parts))
                local = torch.stack([torch.ones_like(parts["loss"]), *parts.values()]).double()
                local *= output.tokens
                counted = torch.tensor([batch["skipped"], bool(stopping.asked())]).double()
                local = torch.cat([local, counted.to(self.device, non_blocking=True)])
                totals.append(distributed.sum_over_ranks(local))
                reference = reference.where(reference > 0, totals[micro][0])
                weight = output.tokens * distributed.world_size() / reference.clamp(min=1)
                scaler.scale(output.loss * weight.float()).backward()
        scaler.unscale_(self.optimizer)
        correction = reference / sum(totals)[0].clamp(min=1) if count > 1 else None
        norm = clip_gradients(self.captioner, self.config, correction)
        # The step's one wait for a GPU, at its end: all that is said or decided of it.
        *values, norm = torch.cat([*totals, norm.double()[None]]).tolist()
        values = [values[i : i + len(local)] for i in range(0, len(values), len(local))]
        problem = what_is_not_finite(values, norm, scaler)
        if problem:
            self.watchdog.pause()
            raise self.inquiry.error(problem, step, self.place, taken)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        names = ["tokens", *parts, *COUNTED]
        return dict(zip(names, map(sum, zip(*values)))), norm

    def _set_learning_rate(self, epoch: int, step: int) -> float:
        waits = plateaus(self.bleu, self.config.lr_patience)
        rate = scheduled_rate(self.config, epoch, step, self.steps, waits)
        for group, share in zip(self.optimizer.param_groups, self.rate_shares):
            group["lr"] = rate * share
        return rate

    # After an epoch

    def _evaluate(self, epoch: int) -> None:
        """Score the validation split, unless a stopped run has; keep the best checkpoint."""
        name = evaluation_name(epoch)
        due = (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.max_epoch
        if due and distributed.broadcast_from_main(read_scores(self.folder, name)) is None:
            # Sampled captions, too, are those of a run that was never stopped.
            torch.manual_seed(
                derived_seed("evaluation", self.config.seed, epoch, distributed.rank())
            )
            self.evaluation.run(self.captioner, name)
        distributed.main_alone(lambda: self._after_evaluation(epoch, due))

    def _after_evaluation(self, epoch: int, due: bool) -> None:
        scores = read_scores(self.folder, evaluation_name(epoch))
        if scores is not None and not self.log.has("val", epoch):
            self.log.write("val", epoch, scores)
            if self.config.follows_bleu and "Bleu_4" not in scores:
                say(f"no BLEU-4 here: {self.config.follows_bleu} does not count this epoch")
        if best_epoch(self.folder, epoch) == epoch:
            checkpoints.keep_as_best(self.folder, epoch)
            if due:
                best = checkpoints.epoch_path(self.folder, epoch).name
                say(f"the best so far is {best}, kept as {self.folder / checkpoints.BEST}")


def _means(sums: Mapping[str, float]) -> dict[str, float]:
    """Sums over tokens to means."""
    tokens = max(sums["tokens"], 1)
    return {n: total / tokens for n, total in sums.items() if n not in ("tokens", *COUNTED)}


def _rounded(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.3f}" for name, value in values.items()}
