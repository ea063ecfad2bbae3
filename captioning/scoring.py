"""A split captioned and scored, with what is left of it in the run's result folder."""

import json
import shlex
import sys
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from captioning import distributed
from captioning.config import Config
from captioning.data import references
from captioning.errors import UserError
from captioning.evaluate import format_table, score, write_scores
from captioning.generation import caption_split
from captioning.metrics.coco import unavailable_metrics
from captioning.run_log import say, write_json


class Evaluation:
    """Scores captioners on the splits of one configuration.

    Says at once which metrics this machine cannot compute. `run` writes, into the run's folder,
    result/NAME.json, the captions as COCO results, and result/NAME/, the scores.
    """

    def __init__(self, config: Config, folder: Path, device: torch.device):
        self.config, self.folder, self.device = config, folder, device
        if distributed.is_main():
            for metric, reason in unavailable_metrics(config.spice).items():
                say(f"{metric} will be skipped: {reason}")

    def run(self, captioner: nn.Module, split: str, name: str) -> Optional[dict[str, float]]:
        """Each metric by name on rank 0, None elsewhere. Raises UserError."""
        truth = references(self.config, split)
        results = caption_split(captioner, self.config, split, self.device)
        if results is None:
            return None
        if not results:
            raise UserError(f"{split}: there is no image to caption")
        write_json(results, self.folder / "result" / f"{name}.json")
        scores = score(results, truth, self.config.spice)
        captions = {result["image_id"]: result["caption"] for result in results}
        write_scores(self.folder / "result" / name, scores, captions, shlex.join(sys.argv))
        say(f"{split}: {results[0]['image_id']}: {results[0]['caption']}")
        say(format_table(scores))
        return scores.metrics


def read_scores(folder: Path, name: str) -> Optional[dict[str, float]]:
    """What an earlier `Evaluation.run` found, or None."""
    path = folder / "result" / name / "metrics.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return {metric: entry["value"] for metric, entry in content["metrics"].items()}
