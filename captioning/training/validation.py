"""Captions and scores a split, and keeps the weights of the best epoch of a run."""

import math
import shutil
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
from captioning.training.log import LOG, RunLog, read_log, shell_command


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
        self.unavailable = distributed.run_on_main(self._find_unavailable)
        for metric, reason in self.unavailable.items():
            log_line(f"{metric} will be skipped: {reason}")

    def _find_unavailable(self) -> dict[str, str]:
        reasons = (evaluator.unavailable() for evaluator in self.evaluators)
        return {metric: reason for each in reasons for metric, reason in each.items()}

    def run(self, captioner: nn.Module, name: str) -> dict[str, float]:
        """Caption and score the split; return {metric: value}.

        All ranks call this. Raises UserError. If a rank is asked to stop, all ranks raise Stopped.
        """
        description = f"captions of {self.split}"
        results = caption_images(captioner, self.samples, self.config, self.device, description)
        return distributed.run_on_main(lambda: self._score(results, name))

    def _score(self, results: list[dict[str, Any]], name: str) -> dict[str, float]:
        if not results:
            raise UserError(f"{self.split}: no image could be read, so there is nothing to score")
        folder = self.folder / "result" / name
        shutil.rmtree(folder, ignore_errors=True)  # scores may be of other weights or settings
        write_json(results, folder.with_suffix(".json"))
        captions = {result["image_id"]: result["caption"] for result in results}
        scores = score(captions, self.references, self.evaluators)
        write_scores(folder, scores, captions, shell_command(sys.argv))
        log_line(f"image {results[0]['image_id']}: {results[0]['caption']}")
        log_line(format_table(scores, len(captions)))
        values = {name: estimate.value for name, estimate in scores.metrics.items()}
        return {name: value for name, value in values.items() if math.isfinite(value)}


def metric_settings(config: Config, samples: Iterable[Sample], device: str) -> Settings:
    """Return the settings that all metrics of a configuration share: image files and device."""
    root = Path(config.image_root)
    images = {sample.image_id: root / sample.image for sample in samples}

    def annotations(split):
        return [] if config.split else annotation_paths(config, split)

    return Settings(images, root, device=device, annotations=annotations, language=config.language)


class Validation(SplitEvaluation):
    """The validations of a run, by which the best epoch is selected and the run may stop early.

    The constructor also raises UserError if a key depends on metrics that cannot be computed.
    validations: {epoch: scores} of the epochs that were validated so far.
    """

    def __init__(self, config: Config, folder: Path, device: torch.device):
        super().__init__(config, "val", folder, device)
        needed = {"select": config.select}
        if config.early_stopping or config.lr_schedule == "plateau":
            needed["monitor"] = config.monitor
        for key, metrics in needed.items():
            if reason := self._reason_unavailable(metrics):
                raise UserError(f"{key} is {metrics}, but {reason}; set {key} to others")

    def begin(self, resumed: Optional[Mapping[str, Any]], epochs: int) -> Config:
        """Read the validations of the finished epochs; return the configuration with a `select`.

        A resumed run keeps the value in its checkpoint. A new run that trains only with MLE selects
        the best epoch by BLIP's rule. Any other run selects the last epoch, because CIDEr and BLEU
        punish the longer captions of SMILE. If the metrics cannot be computed, the last epoch is
        selected. resumed: the content of the checkpoint to resume from, or None.
        """
        lines = distributed.run_on_main(lambda: [*read_log(self.folder / LOG)])
        self.validations = {
            epoch: line
            for line in lines
            if line.pop("event") == "val" and (epoch := line.pop("step")) < epochs
        }
        select = self.config.select or (resumed and resumed["config"].get("select"))
        if select is None:
            is_mle = "coco" in self.config.metrics and training_terms(self.config) == ["mle"]
            select = selection.BLIP_METRICS if is_mle else LAST
        if reason := self._reason_unavailable(select):
            log_line(f"the last epoch will be selected, not the best by {select}: {reason}")
            select = LAST
        self.config = self.config.model_copy(update={"select": select})
        return self.config

    def _reason_unavailable(self, metrics: Optional[str]) -> Optional[str]:
        """Return why a value of `select` or `monitor` cannot be used; None if it can."""
        computed = {name for evaluator in self.evaluators for name in evaluator.metric_names}
        for name in () if metrics in (None, LAST) else MetricSum.parse(metrics).signs:
            if name not in computed:
                return f"metrics is {self.config.metrics}, which does not include {name}"
            if name in self.unavailable:
                return f"{name} cannot be computed: {self.unavailable[name]}"
        return None

    def is_due(self, epochs: int) -> bool:
        """Return whether to score the latest of `epochs` epochs, if it is not scored.

        Every `eval_every`-th epoch is scored, and the last.
        """
        due = epochs % self.config.eval_every == 0 or epochs == self.config.max_epoch
        return epochs > 0 and due and epochs - 1 not in self.validations

    def run_epoch(self, captioner: nn.Module, epochs: int, log: RunLog) -> None:
        """Score and log the latest of `epochs` epochs, if it is due, and keep the best one."""
        config, epoch = self.config, epochs - 1
        if self.is_due(epochs):
            # Seeded so that a resumed run samples the same captions.
            torch.manual_seed(derived_seed("evaluation", config.seed, epoch, distributed.rank()))
            captioner = fsdp.unsharded(captioner, config, self.device)
            self.validations[epoch] = self.run(captioner, evaluation_name(epoch))
            log.write("val", epoch, self.validations[epoch])
        self.keep_best(epochs)

    def keep_best(self, epochs: int) -> None:
        """Make the weights of the selected epoch checkpoint_best.pth, and record the epoch.

        Selects the epoch with the highest value: the latest of several such epochs, or the last
        epoch if none has a value. Epochs whose weights have been removed are passed over. All ranks
        call this. epochs: the number of finished epochs. Raises UserError.
        """
        distributed.run_on_main(lambda: self._keep_best(epochs))

    def _keep_best(self, epochs: int) -> None:
        select, folder, validations = self.config.select, self.folder, self.validations
        values = {} if select == LAST else selection.values_of(validations, select)
        record = selection.read_selection(folder)
        previous = record.epoch if record and checkpoints.best(folder) else None
        ranked = sorted(values, key=lambda epoch: (values[epoch], epoch)) or [epochs - 1]
        kept = [e for e in ranked if e == previous or checkpoints.weights_of(folder, e)]
        selected = kept[-1] if kept else epochs - 1
        if selected not in (previous, ranked[-1]):
            log_line(
                f"epoch {ranked[-1] + 1} is best by select: {select}, but its weights were not "
                "kept (keep_checkpoints)"
            )
        if selected != previous or selected == epochs - 1:
            checkpoints.keep_as_best(folder, selected)
        entries = [
            {"epoch": e, "value": values.get(e), "scores": s} for e, s in validations.items()
        ]
        new = selection.Selection(select, selected, entries)
        if new != record:
            write_json(new._asdict(), folder / selection.SELECTED)


def evaluation_name(epoch: int) -> str:
    return f"val_epoch{epoch:02d}"
