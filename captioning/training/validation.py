"""Captions and scores a split, and keeps the weights of the best epoch of a run."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.config.config import LAST
from captioning.config.objectives import training_terms
from captioning.data.annotations import Sample
from captioning.data.randomness import derived_seed
from captioning.data.sources import annotation_paths, read_split, references
from captioning.files.writing import write_json
from captioning.metrics.base import Settings, build_evaluators
from captioning.metrics.metric_sum import MetricSum
from captioning.metrics.scoring import format_table, score, write_scores
from captioning.models import checkpoints
from captioning.models.generation import caption_images
from captioning.models.reranking import load_model
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.training import fsdp, selection
from captioning.training.log import RunLog, shell_command
from captioning.training.selection import evaluation_name, read_scores, remove_scores


class SplitEvaluation:
    """Captions one split of a configuration and computes the metrics.

    The constructor raises UserError for wrong annotations, references or options, before any
    caption is generated. It logs the metrics that this machine cannot compute. `run` writes to
    `folder`: captions, in the format of COCO results, to result/NAME.json, and scores to
    result/NAME/.
    """

    def __init__(self, config: Config, split: str, folder: Path, device: torch.device):
        self.config, self.split, self.folder, self.device = config, split, folder, device
        load_model(config.reranking(), device)
        with distributed.first_on_each_machine():
            self.samples = read_split(config, split)
            self.references = references(config, split, self.samples)
            settings = metric_settings(config, self.samples, str(device))
            self.evaluators = build_evaluators(config.metrics, settings, config)
        # {metric: why it cannot be computed} on the machine of rank 0, which computes the metrics.
        self.unavailable = {}
        if distributed.is_main():
            for evaluator in self.evaluators:
                self.unavailable.update(evaluator.unavailable())
        self.unavailable = distributed.broadcast_from_main(self.unavailable)
        for metric, reason in self.unavailable.items():
            log_line(f"{metric} will be skipped: {reason}")

    def run(self, captioner: nn.Module, name: str) -> None:
        """Caption and score the split. All ranks call this.

        Raises UserError. If a rank is asked to stop, all ranks raise Stopped.
        """
        description = f"captions of {self.split}"
        results = caption_images(captioner, self.samples, self.config, self.device, description)
        if distributed.broadcast_from_main(results == []):
            raise UserError(f"{self.split}: no image could be read, so there is nothing to score")
        distributed.run_on_main(lambda: self._score(results, name))

    def _score(self, results: list[dict[str, Any]], name: str) -> None:
        remove_scores(self.folder, name)  # earlier scores may be of other weights or settings
        write_json(results, self.folder / "result" / f"{name}.json")
        scores = score(results, self.references, self.evaluators)
        captions = {result["image_id"]: result["caption"] for result in results}
        write_scores(self.folder / "result" / name, scores, captions, shell_command(sys.argv))
        log_line(f"image {results[0]['image_id']}: {results[0]['caption']}")
        log_line(format_table(scores, len(captions)))


def metric_settings(config: Config, samples: Iterable[Sample], device: str) -> Settings:
    """Return the settings that all metrics of a configuration share: image files and device."""
    root = Path(config.image_root)
    images = {sample.image_id: root / sample.image for sample in samples}

    def annotations(split):
        return [] if config.split else annotation_paths(config, split)

    return Settings(images, root, device=device, annotations=annotations, language=config.language)


class Validation(SplitEvaluation):
    """The validations of a run, by which the best epoch is selected and the run may stop early.

    Their scores are read from the run's folder, and rank 0 decides. The constructor also raises
    UserError if a key depends on metrics that cannot be computed.
    """

    def __init__(self, config: Config, folder: Path, device: torch.device):
        super().__init__(config, "val", folder, device)
        if config.select not in (None, LAST):
            self._require(config.select, "select", "select")
        if config.monitors:
            self._require(config.monitor, "monitor", config.monitors)

    def _require(self, metrics: str, key: str, user: str) -> None:
        """Raise UserError if the metrics that `key` names, for the key `user`, are unavailable."""
        if reason := self._reason_unavailable(metrics):
            raise UserError(f"{user} depends on {metrics}, but {reason}; set {key} to others")

    def choose_select(self, resumed: Optional[Mapping[str, Any]]) -> Config:
        """Return the configuration with a value for `select`, which is chosen here if it is None.

        A resumed run keeps the value in its checkpoint. A new run that trains only with MLE selects
        the best epoch by BLIP's rule. Any other run selects the last epoch, because CIDEr and BLEU
        punish the longer captions of SMILE. If the metrics cannot be computed, the last epoch is
        selected. resumed: the content of the checkpoint to resume from, or None.
        """
        select = self.config.select or (resumed and resumed["config"].get("select"))
        if select is None:
            is_mle = "coco" in self.config.metrics and training_terms(self.config) == ["mle"]
            select = selection.BLIP_METRICS if is_mle else LAST
        if select != LAST and (reason := self._reason_unavailable(select)):
            log_line(f"the last epoch will be selected, not the best by {select}: {reason}")
            select = LAST
        self.config = self.config.model_copy(update={"select": select})
        return self.config

    def _reason_unavailable(self, metrics: str) -> Optional[str]:
        """Return why a sum of metrics cannot be computed; None if it can."""
        computed = {name for evaluator in self.evaluators for name in evaluator.metric_names}
        for name in MetricSum.parse(metrics).signs:
            if name not in computed:
                return f"metrics is {self.config.metrics}, which does not include {name}"
            if name in self.unavailable:
                return f"{name} cannot be computed: {self.unavailable[name]}"
        return None

    def reason_finished(self, epochs: int) -> Optional[str]:
        """Return why the run is over after `epochs` epochs; None if it continues."""
        reason = selection.reason_finished(self.config, self.folder, epochs)
        return distributed.broadcast_from_main(reason)

    def plateaus(self, epochs: int) -> int:
        """Return the number of plateaus of `monitor` in the first `epochs` epochs."""
        values = selection.metric_values(self.folder, epochs, self.config.monitor)
        plateaus = selection.count_plateaus(values, self.config.lr_patience)
        return distributed.broadcast_from_main(plateaus)

    def is_due(self, epoch: int) -> bool:
        """Return whether to score an epoch: every `eval_every`-th and the last, if not scored."""
        due = (epoch + 1) % self.config.eval_every == 0 or epoch + 1 == self.config.max_epoch
        is_scored = read_scores(self.folder, evaluation_name(epoch)) is not None
        return distributed.broadcast_from_main(due and not is_scored)

    def run_epoch(self, captioner: nn.Module, epoch: int, log: RunLog) -> None:
        """Score the epoch if it is due, keep the best checkpoint, and log the scores."""
        if self.is_due(epoch):
            # Seeded so that a resumed run samples the same captions.
            seed = derived_seed("evaluation", self.config.seed, epoch, distributed.rank())
            torch.manual_seed(seed)
            self.run(fsdp.unsharded(captioner, self.config, self.device), evaluation_name(epoch))
        self.finish_epoch(epoch, log)

    def finish_epoch(self, epoch: int, log: RunLog) -> None:
        """Keep the best checkpoint, and log the scores unless they are logged already."""
        distributed.run_on_main(lambda: self._select_and_log(epoch, log))

    def _select_and_log(self, epoch: int, log: RunLog) -> None:
        selected = select_best(self.config.select, self.folder, epoch + 1)
        scores, config = read_scores(self.folder, evaluation_name(epoch)), self.config
        is_new = scores is not None and log.write("val", epoch, scores, selected=selected)
        if is_new and config.monitors and MetricSum.parse(config.monitor).compute(scores) is None:
            log_line(f"{config.monitors} ignores this epoch, which has no {config.monitor}")


def select_best(select: str, folder: Path, epochs: int) -> int:
    """Make the weights of the selected epoch checkpoint_best.pth; record and return the epoch.

    Selects the epoch with the highest value: the latest of several such epochs, or the last epoch
    if none has a value. Epochs whose weights have been removed are passed over. Only called on rank
    0. Raises UserError.

    - select: "last" or a sum of metrics
    - epochs: the number of finished epochs
    """
    validations = selection.read_validations(folder, epochs, None if select == LAST else select)
    previous = selection.best_epoch(folder)
    by_value = sorted((v["value"], v["epoch"]) for v in validations if v["value"] is not None)
    ranked = [epoch for _, epoch in by_value]
    kept = [e for e in ranked if e == previous or checkpoints.weights_of(folder, e)]
    selected = kept[-1] if kept else epochs - 1
    if selected != previous:
        if ranked and ranked[-1] != selected:
            log_line(
                f"epoch {ranked[-1] + 1} is best by select: {select}, but its weights were not "
                "kept (keep_checkpoints)"
            )
        if select != LAST:
            line = f"now has the weights of epoch {selected + 1}, by select: {select}"
            log_line(f"{checkpoints.BEST} {line}")
    if selected != previous or selected == epochs - 1:
        checkpoints.keep_as_best(folder, selected)
    record = selection.Selection(select, selected, validations)
    if record != selection.read_selection(folder):
        write_json(record._asdict(), folder / selection.SELECTED)
    return selected
