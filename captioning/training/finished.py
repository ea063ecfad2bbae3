"""Whether a run is done: trained to its end and scored under these very settings."""

from pathlib import Path

from captioning.config import Config, load_config
from captioning.models import checkpoints
from captioning.training.validation_history import why_over


def is_done(trained: Config, scored: Config) -> bool:
    """Whether the run has no further epoch, began where it should, and `is_scored`.

    trained: its configuration in training; scored: in captioning, where `pretrained` on the command
    line would name the weights to caption with.
    """
    folder = Path(trained.output_dir)
    epochs, record = checkpoints.of_epochs(folder), folder / "config.yaml"
    if not epochs or not record.exists() or not is_scored(scored):
        return False
    if load_config(record).pretrained != trained.pretrained:
        return False
    newest = int(epochs[-1].stem.rpartition("_")[2])
    return why_over(trained, folder, newest + 1) is not None


def is_scored(config: Config, split: str = "test") -> bool:
    """Whether the best weights that are there have captioned and scored the split."""
    folder = Path(config.output_dir)
    scored = folder / "result" / split / "metrics.json"
    settings = scored.with_name("config.yaml")
    weights = folder / checkpoints.BEST
    if not all(path.exists() for path in (scored, settings, weights)):
        return False
    if scored.stat().st_mtime < weights.stat().st_mtime:
        return False
    return load_config(settings) == config
