"""Loads the checkpoints of the page, and gives them labels and colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.files.stores import without_secrets
from captioning.models import checkpoints
from captioning.models.build import load_trained
from captioning.models.precision import DTYPES, check_precision
from captioning.report.figures import styles
from captioning.report.runs import distinct, kind_of, refuse_twice, trained_name
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# The demo's runs, full and quick, in the page's order.
DEMOS = [Path("output/demo"), Path("output/demo-quick")]
DEMO_RUNS = ("mle", "smile", "mle_smile")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    source: the name given by the user, without secrets. label: unique in the page. captioner: in
    evaluation mode, on the page's device.
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
    """The demo's checkpoints in the working folder. Raises UserError if there are none."""
    for folder in DEMOS:
        found = [best for run in DEMO_RUNS if (best := checkpoints.best(folder / run))]
        if found:
            return [str(path) for path in found]
    raise UserError(
        "no checkpoint was given, and the demo has left none: run bash scripts/demo.sh, or give a "
        "checkpoint: bash scripts/app.sh CHECKPOINT"
    )


def load_checkpoints(
    sources: Sequence[str],
    config: Optional[str],
    device: torch.device,
    precision: str = "fp32",
) -> list[Checkpoint]:
    """Load checkpoints, and print a line for each.

    sources: paths, run folders (their best checkpoint), URLs, hf://. config: the YAML file for
    checkpoints outside of run folders. precision: fp32 or int8. Raises UserError.
    """
    paths = [checkpoints.resolve(source) for source in sources]
    shown = [without_secrets(path) for path in paths]
    if len(set(paths)) < len(paths):
        refuse_twice(shown, "checkpoint")
    configs, captioners, labels, kinds = [], [], [], []
    changes = {"precision": precision, "compile": False}
    for path, name in zip(paths, shown):
        of_run = Path(name).with_name("config.yaml").exists()
        settings, captioner = load_trained(path, None if of_run else config, device)
        configs.append(settings)
        check_precision(settings.model_copy(update=changes), device)
        captioners.append(captioner.for_inference(DTYPES[precision], compiled=False))
        trained = of_run or config is None
        labels.append(trained_name(settings) if trained else Path(name).stem)
        kinds.append(kind_of(settings) if trained else "weights")
        log_line(f"loaded {name}: {labels[-1]}")
    numbers = [str(number) for number in range(1, len(paths) + 1)]
    labels = distinct(labels, [Path(name).parent.name for name in shown], shown, numbers)
    colours = [style.colour for style in styles(kinds)]
    return [Checkpoint(*each) for each in zip(shown, labels, colours, configs, captioners)]
