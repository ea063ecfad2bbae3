"""Fine-tunes a captioner. `fine_tune` reads from the data to the last epoch."""

from collections import Counter
from itertools import islice

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from captioning.config import Config
from captioning.config.objectives import describe_training
from captioning.data.loader import on_device
from captioning.data.shards import Shards
from captioning.data.sources import read_split
from captioning.models.build import captioner_from, preprocessing_of, tokenizer_of
from captioning.models.precision import Precision
from captioning.models.prompts import check_prompts
from captioning.runtime import distributed, signals
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line, progress
from captioning.training import fsdp
from captioning.training.batches import training_batches
from captioning.training.checkpointing import Checkpointing, Progress, resume_content
from captioning.training.data_check import check_captions, check_data
from captioning.training.log import RunLog, record_run
from captioning.training.output_folder import OutputFolder
from captioning.training.schedule import build_optimizer, scheduled_rate
from captioning.training.selection import count_plateaus, reason_finished, summary
from captioning.training.self_critical import SelfCritical, build_rewards
from captioning.training.step import NotFiniteError, TrainingStep, token_means
from captioning.training.validation import Validation


def fine_tune(config: Config, device: torch.device, check_only: bool = False) -> None:
    """Train until all epochs are done or the run stops early, on one or several devices.

    Raises UserError, and Stopped after a signal. The same call resumes the run. check_only: only
    check settings, data, metrics and rewards, without weights.
    """
    # Settings, data, metrics and rewards: what is wrong is found before the captioner is loaded.
    if config.precision == "int8":
        raise UserError("precision is int8, which is only for inference; use fp32, bf16 or fp16")
    fsdp.check_sharding(config)
    output = OutputFolder(config.output_dir)
    validation = Validation(config, output.folder, device)
    with distributed.first_on_each_machine():
        samples = read_split(config, "train")
    loader = training_batches(config, samples, preprocessing_of(config))
    epoch_steps = len(loader) // config.accumulation_steps  # optimizer steps
    if not epoch_steps:
        raise UserError(
            f"accumulation_steps is {config.accumulation_steps}, but an epoch has only "
            f"{len(loader)} batches; lower accumulation_steps or batch_size"
        )
    distributed.run_on_main(lambda: check_data(config, samples, validation.samples))
    if check_only:
        distributed.run_on_main(lambda: check_captions(config, samples, tokenizer_of(config)))
        if config.reward:
            build_rewards(config, samples, device)
        return

    # The state to begin with. Files are written only from here on.
    output.begin()
    resumed = resume_content(config, output, len(loader.dataset))
    position = Progress.of(resumed)
    config = validation.begin(resumed, position.epoch)
    # The run may have stopped between the last checkpoint and its validation.
    lacks_scores = not position.steps and validation.is_due(position.epoch)
    if not lacks_scores and (
        reason := reason_finished(config, validation.validations, position.epoch)
    ):
        validation.keep_best(position.epoch)
        _finish(reason, output)
        return
    rewards = build_rewards(config, samples, device) if config.reward else None
    record_run(config, output.folder)
    output.upload()
    log_line(describe_training(config))

    # The model, the optimizer and the step.
    with distributed.first_on_each_machine():
        pretrained = None if resumed else config.pretrained
        captioner, loaded = captioner_from(config, pretrained, resumed)
    log_line(f"resuming from {resumed['name']}" if resumed else loaded)
    annotated = samples.with_prompts() if isinstance(samples, Shards) else samples
    check_prompts(annotated, captioner, config, "max_tokens")
    check_prompts(validation.samples, captioner, config, "max_length")
    distributed.run_on_main(lambda: check_captions(config, samples, captioner.tokenizer))
    precision = Precision(config.precision, device)
    learner = SelfCritical(captioner, config, rewards) if rewards else captioner
    model = distribute(learner, captioner, config, device, precision.dtype)
    optimizer, rate_factors = build_optimizer(captioner, config)
    checkpointing = Checkpointing(
        config, output, captioner, optimizer, precision, len(loader.dataset)
    )
    if resumed:
        checkpointing.restore(resumed)
    take_step = TrainingStep(config, model, learner, optimizer, precision)
    images = config.batch_size * distributed.world_size() * config.accumulation_steps
    log = RunLog(output.folder, position.epoch, position.epoch * epoch_steps + position.steps)

    try:
        while True:
            epoch = position.epoch
            if epoch and not position.steps:
                validation.run_epoch(captioner, epoch, log)
                output.upload()
            if reason := reason_finished(config, validation.validations, epoch):
                break
            captioner.begin_epoch(epoch)
            model.train()
            loader.set_epoch(epoch, position.steps * config.accumulation_steps)
            batches = islice(loader, (epoch_steps - position.steps) * config.accumulation_steps)
            batches = on_device(batches, device)
            plateaus = count_plateaus(config, validation.validations)
            sums = Counter(position.sums)
            title = f"epoch {epoch + 1}/{config.max_epoch}"
            with progress(epoch_steps * images, title) as bar:
                bar.update(position.steps * images)
                for step in range(epoch * epoch_steps + position.steps, (epoch + 1) * epoch_steps):
                    rate = scheduled_rate(config, epoch, step, epoch_steps, plateaus)
                    for group, factor in zip(optimizer.param_groups, rate_factors):
                        group["lr"] = rate * factor
                    try:
                        result = take_step(batches, step)
                    except NotFiniteError as error:
                        if position.steps:  # else the state is saved, or that of the start
                            checkpointing.save(position, step)
                        raise UserError(f"{error}; the same command repeats the step") from error
                    stop_requested = result.sums.pop("stop_requested")
                    sums.update(result.sums)
                    position = Progress(epoch, position.steps + 1, dict(sums))
                    means = token_means(result.sums)
                    bar.set_postfix({n: f"{v:.3f}" for n, v in means.items()}, refresh=False)
                    bar.update(images)
                    if (step + 1) % config.log_every == 0:
                        values = {**means, "learning_rate": rate, **result.values}
                        log.write("step", step + 1, values, epoch=epoch)
                    every = config.checkpoint_every
                    is_due = every and (step + 1) % every == 0 and position.steps < epoch_steps
                    if stop_requested or is_due:
                        checkpointing.save(position, step + 1)
                    if stop_requested:
                        raise signals.Stopped
            means, skipped = token_means(sums), int(sums["skipped_images"])
            log.write("epoch", epoch, means, skipped_images=skipped)
            log_line(f"{title}: " + ", ".join(f"{name} {means[name]:.3f}" for name in means))
            if skipped:
                log_line(f"{title}, {skipped} unreadable images")
            position = Progress(epoch + 1)
            checkpointing.save(position)
    finally:
        loader.close()
        log.close()
        take_step.model = model = learner  # frees DistributedDataParallel, see `distributed.stop`
    _finish(reason, output)


def _finish(reason: str, output: OutputFolder) -> None:
    """Log why the run is over and which epoch was selected."""
    for line in (reason, *summary(output.folder)):
        log_line(line)
    output.upload()


def distribute(
    learner: nn.Module,
    captioner: nn.Module,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> nn.Module:
    """Move the learner to the device; return the model to call in training. Raises UserError.

    The model is the sharded learner, the learner in a DistributedDataParallel, or, in a single
    process, the learner itself.

    - learner: the captioner, or the `SelfCritical` that wraps the captioner
    - dtype: the precision of a sharded learner
    """
    group = distributed.create_training_group(config.rank_timeout)
    if config.sharding == "fsdp":
        return fsdp.shard(learner, group, device, dtype)
    learner.to(device)
    if config.compile:
        captioner.compile_parts()
    if group is None:
        return learner
    return DistributedDataParallel(
        learner,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=group,
        find_unused_parameters=captioner.has_unused_parameters,
        gradient_as_bucket_view=True,  # avoids a second copy of the gradient
    )
