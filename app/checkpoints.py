"""Which checkpoints the page has, and what they are called in it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.models import checkpoints
from captioning.models.build import load_trained
from captioning.report.figures import styles
from captioning.report.runs import trained_name
from captioning.runtime.errors import UserError
from captioning.runtime.progress import say
from smile import parse_objective

# The demo's runs, whole or quick, in the order in which the page shows them.
DEMOS = [Path("output/demo"), Path("output/demo-quick")]
DEMO_RUNS = ("mle", "smile", "mle_smile")


@dataclass(frozen=True)
class Checkpoint:
    """source: as it was named; label, colour: in the page, the label distinct among all.

    captioner: in evaluation mode, on the page's device.
    """

    source: str
    label: str
    colour: str
    config: Config
    captioner: nn.Module

    @property
    def device(self) -> torch.device:
        return next(self.captioner.parameters()).device


def demos_checkpoints() -> list[str]:
    """The demo's, in the working folder. Raises UserError where there are none."""
    for folder in DEMOS:
        found = [best for run in DEMO_RUNS if (best := checkpoints.best(folder / run))]
        if found:
            return [str(path) for path in found]
    raise UserError(
        "no checkpoint was named, and there are none of the demo: make them with "
        "bash scripts/demo.sh, or name one: bash scripts/app.sh CHECKPOINT"
    )


def load_checkpoints(
    sources: Sequence[str], config: Optional[str], device: torch.device
) -> list[Checkpoint]:
    """Load them, telling of each.

    sources: paths, run folders (of which the best checkpoint is meant), URLs, hf://. config: the
    YAML file of those that are not in a run's folder. Raises UserError.
    """
    paths = [checkpoints.named(source) for source in sources]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise UserError(f"{twice[0]} is named twice: name every checkpoint once")
    found, kinds = [], []
    for path in paths:
        of_run = Path(path).with_name("config.yaml").exists()
        settings, captioner = load_trained(path, None if of_run else config, device)
        captioner = captioner.for_inference(torch.float32, compiled=False)
        trained = of_run or config is None
        label = trained_name(settings) if trained else Path(path).stem
        found.append(Checkpoint(path, label, "", settings, captioner))
        kinds.append(_kind(settings) if trained else "weights")
        say(f"loaded {path}: {label}")
    coloured = [replace(c, colour=style.colour) for c, style in zip(found, styles(kinds))]
    return _distinct(coloured)


def _kind(config: Config) -> str:
    parts = parse_objective(config.objective)
    return "mixture" if len(parts) > 1 else next(iter(parts))


def _distinct(named: list[Checkpoint]) -> list[Checkpoint]:
    """With the folder, or all of the path, beside a label that occurs twice."""
    for place in (lambda path: Path(path).parent.name, str):
        labels = [c.label for c in named]
        named = [
            replace(c, label=f"{c.label} ({place(c.source)})") if labels.count(c.label) > 1 else c
            for c in named
        ]
    return named
