"""Fine-tuning, step by step: set up, train an epoch, save it, evaluate it, keep the best."""

import math
from contextlib import nullcontext
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from captioning import checkpointing, distributed
from captioning.config import Config
from captioning.data import TrainingDataset, read_split, training_loader, training_transform
from captioning.data.randomness import derived_seed
from captioning.errors import UserError
from captioning.model import captioner_from
from captioning.precision import Precision
from captioning.run_log import RunLog, open_run, progress, say
from captioning.schedule import learning_rate
from captioning.scoring import Evaluation, read_scores

# What a resumed run may change without a word.
FREE_KEYS = {"num_workers", "resume", "keep_checkpoints", "log_every", "device", "output_dir"}


class FineTuning:
    """One run of a configuration on one device or many; `run` does all of it."""

    def __init__(self, config: Config, device: torch.device):
        self.config, self.device = config, device
        self.folder = open_run(config)
        self.evaluation = Evaluation(config, "val", self.folder, device)
        self.loader = self._build_loader()
        self.steps = len(self.loader) // config.accumulation_steps  # optimiser steps an epoch
        self.precision = Precision(config.precision, device)
        self.resumed = self._find_checkpoint()
        self.captioner = self._build_captioner()
        self.model = self._wrap(self.captioner)
        self.optimizer = torch.optim.AdamW(
            self.captioner.parameters(), lr=config.init_lr, weight_decay=config.weight_decay
        )
        self.first_epoch = self._restore()
        self.log = RunLog(self.folder)

    def run(self) -> None:
        try:
            if self.first_epoch > 0:
                self._evaluate(self.first_epoch - 1)  # if the run ended before it could
            for epoch in range(self.first_epoch, self.config.max_epoch):
                self._train_epoch(epoch)
                self._save(epoch)
                self._evaluate(epoch)
        finally:
            self.close()

    def close(self) -> None:
        """Close the log and let go of the distributed model; see `distributed.stop`."""
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
            training_transform(config.image_size),
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
        )
        if len(loader) < config.accumulation_steps:
            raise UserError(
                f"accumulation_steps is {config.accumulation_steps}, but an epoch has only "
                f"{len(loader)} batches; lower it or batch_size"
            )
        return loader

    def _find_checkpoint(self) -> Optional[dict[str, Any]]:
        if self.config.resume == "never":
            return None
        newest = checkpointing.read_newest(self.folder)
        if newest is None:
            return None
        content, problems = newest
        for line in problems:
            say(line)
        now = self.config.model_dump()
        changed = [k for k in now if k not in FREE_KEYS and content["config"].get(k) != now[k]]
        for key in changed:
            say(f"{key} was {content['config'].get(key)!r} when the run stopped, is {now[key]!r}")
        say(f"resuming {self.folder} after epoch {content['epoch']}")
        return content

    def _build_captioner(self) -> nn.Module:
        checkpoint = None if self.resumed else self.config.pretrained
        with distributed.first_on_each_machine():
            captioner, loaded = captioner_from(self.config, checkpoint)
        if not self.resumed:
            say(loaded)
        return captioner.to(self.device)

    def _wrap(self, captioner: nn.Module) -> nn.Module:
        if self.config.compile:
            for part in captioner.children():
                part.compile()
        if distributed.world_size() == 1:
            return captioner
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(captioner, device_ids=devices)

    def _restore(self) -> int:
        """Put the found checkpoint in place; the epoch to go on with."""
        if self.resumed is None:
            return 0
        try:
            self.captioner.load_state_dict(self.resumed["model"])
            self.optimizer.load_state_dict(self.resumed["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"the checkpoint in {self.folder} is of another model than the configuration's; "
                "use its own configuration, another output_dir or resume=never"
            ) from error
        self.precision.scaler.load_state_dict(self.resumed.get("scaler", {}))
        first_epoch = self.resumed["epoch"] + 1
        self.resumed = None  # free the memory
        return first_epoch

    # Training

    def _train_epoch(self, epoch: int) -> None:
        config = self.config
        self.model.train()
        self.loader.set_epoch(epoch)
        batches = iter(self.loader)
        images = config.batch_size * distributed.world_size() * config.accumulation_steps
        description = f"epoch {epoch + 1}/{config.max_epoch}"
        summed: Optional[Tensor] = None
        with progress(self.steps * images, description) as bar:
            for step in range(epoch * self.steps, (epoch + 1) * self.steps):
                rate = self._set_learning_rate(epoch, step)
                sums, names, norm = self._optimiser_step(batches, step)
                summed = sums if summed is None else summed + sums
                means = self._means(sums, names)
                bar.set_postfix(_rounded(means), refresh=False)
                bar.update(images)
                if (step + 1) % config.log_every == 0:
                    extra = {"learning_rate": rate, **({} if norm is None else {"grad_norm": norm})}
                    self.log.write("step", step + 1, {**means, **extra}, epoch=epoch)
        means = self._means(summed, names)
        skipped = int(self._sum([self.loader.skipped]).item())
        self.log.write("epoch", epoch, means, skipped_images=skipped)
        parts = ", ".join(f"{name} {value}" for name, value in _rounded(means).items())
        say(f"{description}: {parts}" + (f", {skipped} unreadable images" if skipped else ""))

    def _optimiser_step(self, batches, step: int) -> tuple[Tensor, list[str], Optional[float]]:
        """One step on `accumulation_steps` batches a process.

        Every labelled token counts alike, whichever batch or process it is in: each batch's mean
        is weighted by its tokens, relative to those of the first batch on all processes, and the
        gradient put right at the end where there were further ones. Returns sums over tokens.
        """
        count, scaler = self.config.accumulation_steps, self.precision.scaler
        sums = reference = None
        for micro in range(count):
            batch = next(batches)
            last = micro == count - 1
            torch.manual_seed(
                derived_seed("step", self.config.seed, step * count + micro, distributed.rank())
            )
            quiet = nullcontext() if last or self.model is self.captioner else self.model.no_sync()
            with quiet:
                with self.precision.autocast():
                    image = batch["image"].to(self.device, non_blocking=True)
                    output = self.model(image, batch["captions"])
                parts = [output.loss.detach(), *output.parts.values()]
                local = torch.stack([torch.ones_like(parts[0]), *parts]).double() * output.tokens
                total = distributed.sum_over_ranks(local)
                self._check_finite(total, step, batch)
                sums = total if sums is None else sums + total
                reference = sums[0].clamp(min=1) if reference is None else reference
                weight = output.tokens * distributed.world_size() / reference
                scaler.scale(output.loss * weight.float()).backward()
        return sums, ["loss", *output.parts], self._apply(reference / sums[0].clamp(min=1))

    def _apply(self, correction: Tensor) -> Optional[float]:
        """The optimiser's step on gradients times `correction`; their norm, if it is clipped."""
        scaler, norm = self.precision.scaler, None
        scaler.unscale_(self.optimizer)
        if self.config.accumulation_steps > 1:
            gradients = [p.grad for p in self.captioner.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, float(correction))
        if self.config.clip_grad_norm is not None:
            parameters = self.captioner.parameters()
            norm = float(nn.utils.clip_grad_norm_(parameters, self.config.clip_grad_norm))
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _check_finite(self, sums: Tensor, step: int, batch: dict[str, Any]) -> None:
        """Every process sees the same sums, so that all stop together."""
        if not sums.isfinite().all():
            raise UserError(
                f"the loss is not finite at step {step + 1} (rank {distributed.rank()} had images "
                f"{batch['image_id'][:8]}); lower init_lr, set clip_grad_norm, or use another "
                f"precision than {self.config.precision}; the last checkpoint is in {self.folder}"
            )

    def _set_learning_rate(self, epoch: int, step: int) -> float:
        c = self.config
        rate = learning_rate(
            epoch, step, c.max_epoch, c.init_lr, c.min_lr, c.warmup_steps, c.warmup_lr
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _means(self, sums: Tensor, names: list[str]) -> dict[str, float]:
        tokens, *totals = sums.tolist()
        return {name: total / max(tokens, 1) for name, total in zip(names, totals)}

    def _sum(self, values: list[float]) -> Tensor:
        return distributed.sum_over_ranks(torch.tensor(values, device=self.device))

    # After an epoch

    def _save(self, epoch: int) -> None:
        if distributed.is_main():
            content = {
                "model": self.captioner.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "config": self.config.model_dump(),
                "epoch": epoch,
                "scaler": self.precision.scaler.state_dict(),
            }
            checkpointing.save_atomically(content, checkpointing.epoch_path(self.folder, epoch))
            checkpointing.remove_oldest(self.folder, self.config.keep_checkpoints)
        distributed.barrier()

    def _evaluate(self, epoch: int) -> None:
        """Score the validation split, unless a stopped run has; keep the best checkpoint."""
        name = f"val_epoch{epoch:02d}"
        if read_scores(self.folder, name) is None:
            scores = self.evaluation.run(self.captioner, name)
            if scores is not None:
                self.log.write("val", epoch, scores)
        if distributed.is_main() and self._best_epoch(epoch) == epoch:
            checkpointing.keep_as_best(self.folder, epoch)
            say(f"epoch {epoch} is the best so far: {self.folder / checkpointing.BEST}")
        distributed.barrier()

    def _best_epoch(self, last: int) -> int:
        """By CIDEr + BLEU-4 on the validation split, the earlier of equals."""

        def quality(epoch: int) -> float:
            scores = read_scores(self.folder, f"val_epoch{epoch:02d}")
            return -math.inf if scores is None else scores["CIDEr"] + scores["Bleu_4"]

        return max(range(last + 1), key=quality)


def _rounded(values: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.3f}" for name, value in values.items()}
