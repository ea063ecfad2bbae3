"""Loads the checkpoints of the page, and gives each checkpoint a label and a colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
from torch import nn

from captioning.config import Config
from captioning.data.image import Preprocessing
from captioning.files.stores import without_secrets
from captioning.models import checkpoints
from captioning.models.build import load_trained, preprocessing_of
from captioning.models.precision import DTYPES, check_precision
from captioning.report.figures import assign_styles
from captioning.report.runs import make_unique, objective_kind, training_title
from captioning.runtime.errors import UserError
from captioning.runtime.progress import log_line

# The folders of the full and of the quick demo, and the runs of a demo in the order of the page.
DEMOS = ("output/demo", "output/demo-quick")
DEMO_RUNS = ("mle", "smile", "mle_smile")


@dataclass
class Checkpoint:
    """A loaded checkpoint.

    - source: its path or address, without secrets
    - label: its name in the page, unique there
    - colour: the colour of its card
    - captioner: in evaluation mode, on the device
    - preprocessing: that of the captioner
    """

    source: str
    label: str
    colour: str
    config: Config
    captioner: nn.Module
    device: torch.device
    preprocessing: Preprocessing


def find_demo_checkpoints() -> list[str]:
    """Return the paths of the full demo's checkpoints, or else of the quick demo's.

    Raises UserError if neither demo has checkpoints.
    """
    for demo in DEMOS:
        if paths := [best for run in DEMO_RUNS if (best := checkpoints.best(Path(demo, run)))]:
            return [str(path) for path in paths]
    raise UserError(
        "no checkpoint was given, and the demo has left none: run bash scripts/demo.sh, or give a "
        "checkpoint: bash scripts/app.sh CHECKPOINT"
    )


def load_checkpoints(
    sources: Sequence[str], config: Optional[str], device: torch.device, precision: str = "fp32"
) -> list[Checkpoint]:
    """Load checkpoints and return them. Log a line for each.

    - sources: checkpoint files, folders of runs (for the best checkpoint of the run), URLs or hf://
      addresses
    - config: a YAML file, used only for checkpoints that are not in a run's folder
    - precision: fp32 or int8

    Raises UserError.
    """
    paths = [checkpoints.resolve(source) for source in sources]
    names = [without_secrets(path) for path in paths]
    loaded, kinds, labels = [], [], []
    for path, name in zip(paths, names):
        has_run = config is None or Path(name).with_name("config.yaml").exists()
        run, captioner = load_trained(path, None if has_run else config, device)
        is_run = has_run and run.image_root != ""  # it is empty for weights without a run
        check_precision(run.model_copy(update={"precision": precision, "compile": False}), device)
        captioner = captioner.for_inference(DTYPES[precision], compiled=False)
        kinds.append(objective_kind(run) if is_run else "weights")
        labels.append(training_title(run) if is_run else Path(name).stem)
        loaded.append((name, run, captioner))
        log_line(f"loaded {name}: {labels[-1]}")
    folders = [Path(name).parent.name for name in names]
    labels = make_unique(labels, folders, names, [str(n + 1) for n in range(len(names))])
    return [
        Checkpoint(name, label, style.colour, run, captioner, device, preprocessing_of(run))
        for (name, run, captioner), label, style in zip(loaded, labels, assign_styles(kinds))
    ]
