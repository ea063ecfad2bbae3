"""Loads the checkpoints of the page, and gives each checkpoint a label and a colour."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.files.stores import without_secrets
from captioning.models import checkpoints
from captioning.models.build import load_trained
from captioning.models.precision import DTYPES, check_precision
from captioning.report.figures import assign_styles
from captioning.report.runs import check_unique, make_unique, objective_kind, training_title
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# The folders of the full and of the quick demo, and the runs of a demo in the order of the page.
DEMOS = [Path("output/demo"), Path("output/demo-quick")]
DEMO_RUNS = ("mle", "smile", "mle_smile")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    source: its path or address, without secrets. label: its name in the page, unique there. colour:
    the colour of its card. captioner: in evaluation mode, on the device of the page.
    """

    source: str
    label: str
    colour: str
    config: Config
    captioner: nn.Module

    @property
    def device(self) -> torch.device:
        return next(self.captioner.parameters()).device


def find_demo_checkpoints() -> list[str]:
    """Return the paths of the full demo's checkpoints, or else of the quick demo's.

    Raises UserError if neither demo has checkpoints.
    """
    for folder in DEMOS:
        best_checkpoints = [best for run in DEMO_RUNS if (best := checkpoints.best(folder / run))]
        if best_checkpoints:
            return [str(path) for path in best_checkpoints]
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
    """Load checkpoints and return them. Log a line for each.

    sources: checkpoint files, folders of runs (for the best checkpoint of the run), URLs or hf://
    addresses. config: a YAML file, used only for checkpoints that are not in a run's folder.
    precision: fp32 or int8. Raises UserError.
    """
    paths = [checkpoints.resolve(source) for source in sources]
    display_names = [without_secrets(path) for path in paths]
    if len(set(paths)) < len(paths):
        check_unique(display_names, "checkpoint")
    loaded, kinds = [], []
    page_settings = {"precision": precision, "compile": False}
    for path, name in zip(paths, display_names):
        has_own_config = config is None or Path(name).with_name("config.yaml").exists()
        run_config, captioner = load_trained(path, None if has_own_config else config, device)
        check_precision(run_config.model_copy(update=page_settings), device)
        captioner = captioner.for_inference(DTYPES[precision], compiled=False)
        label = training_title(run_config) if has_own_config else Path(name).stem
        kinds.append(objective_kind(run_config) if has_own_config else "weights")
        loaded.append(Checkpoint(name, label, "", run_config, captioner))
        log_line(f"loaded {name}: {label}")
    # Labels and colours depend on all checkpoints.
    folder_names = [Path(name).parent.name for name in display_names]
    numbers = [str(number) for number in range(1, len(paths) + 1)]
    labels = make_unique([c.label for c in loaded], folder_names, display_names, numbers)
    return [
        replace(checkpoint, label=label, colour=style.colour)
        for checkpoint, label, style in zip(loaded, labels, assign_styles(kinds))
    ]
