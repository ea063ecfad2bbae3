"""Captions and scores a split, and writes both to the run's result folder."""

import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.data.annotations import Sample
from captioning.data.sources import read_split, references
from captioning.files.reading import read_json
from captioning.files.writing import write_json
from captioning.metrics.base import Evaluator, Settings, build_evaluators
from captioning.metrics.scoring import format_table, score, write_scores
from captioning.models.generation import caption_images
from captioning.models.reranking import check_reranking
from captioning.runtime import distributed
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line
from captioning.training.run_log import shell_command


class SplitEvaluation:
    """Captions one split of a configuration and computes the metrics.

    The constructor raises UserError for wrong annotations, references or options, before any
    caption is generated. It logs the metrics that this machine cannot compute. `run` writes to the
    run's folder: captions, in the format of COCO results, to result/NAME.json, and scores to
    result/NAME/.
    """

    def __init__(self, config: Config, split: str, folder: Path, device: torch.device):
        self.config, self.split, self.folder, self.device = config, split, folder, device
        check_reranking(config)
        with distributed.first_on_each_machine():
            self.samples = read_split(config, split)
            self.references = references(config, split, self.samples)
            settings = metric_settings(config, self.samples, str(device))
            self.evaluators = build_evaluators(config.metrics, settings, config)
        # {metric: why it cannot be computed}, as rank 0 finds, which needs every metric.
        self.unavailable_metrics = {}
        if distributed.is_main():
            for evaluator in self.evaluators:
                self.unavailable_metrics.update(evaluator.unavailable())
        self.unavailable_metrics = distributed.broadcast_from_main(self.unavailable_metrics)
        for metric, reason in self.unavailable_metrics.items():
            log_line(f"{metric} will be skipped: {reason}")

    def run(self, captioner: nn.Module, name: str) -> Optional[dict[str, float]]:
        """Caption and score the split. All ranks call this.

        Returns {metric: value} on rank 0, None on other ranks. Raises UserError. If a rank is asked
        to stop, all ranks raise Stopped.
        """
        return self.score(self.caption(captioner), name)

    def caption(self, captioner: nn.Module) -> list[dict[str, Any]]:
        """Return the captions of the split on all ranks, in the format of `caption_images`."""
        description = f"captions of {self.split}"
        results = caption_images(captioner, self.samples, self.config, self.device, description)
        results = distributed.broadcast_from_main(results)
        if not results:
            raise UserError(f"{self.split}: no image could be read, so there is nothing to score")
        return results

    def score(self, results: list[dict[str, Any]], name: str) -> Optional[dict[str, float]]:
        """Write and score the captions that `caption` returned. Returns what `run` returns."""
        is_main = distributed.is_main()
        if is_main:
            write_json(results, self.folder / "result" / f"{name}.json")
        scores = score(results, self.references, self._stoppable_evaluators())
        if not is_main:
            return None
        captions = {result["image_id"]: result["caption"] for result in results}
        write_scores(self.folder / "result" / name, scores, captions, shell_command(sys.argv))
        log_line(f"image {results[0]['image_id']}: {results[0]['caption']}")
        log_line(format_table(scores, len(captions)))
        return {metric: estimate.value for metric, estimate in scores.metrics.items()}

    def _stoppable_evaluators(self) -> Iterator[Evaluator]:
        """Yield the evaluators. Before and after each evaluator, raise Stopped if requested."""
        for evaluator in self.evaluators:
            distributed.raise_if_stop_requested(wait_long=True)
            yield evaluator
        distributed.raise_if_stop_requested(wait_long=True)


def metric_settings(config: Config, samples: Iterable[Sample], device: str) -> Settings:
    """Return the settings that all metrics of a configuration share: image files and device."""
    root = Path(config.image_root)
    images = {sample.image_id: root / sample.image for sample in samples}
    return Settings(images, root, device=device)


def remove_scores(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "result" / name, ignore_errors=True)


def read_scores(folder: Path, name: str) -> Optional[dict[str, float]]:
    """Return {metric: value} that an earlier `SplitEvaluation.run` wrote, or None."""
    path = folder / "result" / name / "metrics.json"
    if not path.exists():
        return None
    return {metric: entry["value"] for metric, entry in read_json(path)["metrics"].items()}
