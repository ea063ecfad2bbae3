"""Whether a run is done: trained to its end and scored under these very settings."""

from pathlib import Path

from captioning import checkpointing
from captioning.config import Config, load_config
from captioning.validation_history import why_over


def is_done(config: Config, split: str = "test") -> bool:
    """Whether the run in its folder has no further epoch, and `is_scored`."""
    epochs = checkpointing.of_epochs(Path(config.output_dir))
    if not epochs or not is_scored(config, split):
        return False
    newest = int(epochs[-1].stem.rpartition("_")[2])
    return why_over(config, Path(config.output_dir), newest + 1) is not None


def is_scored(config: Config, split: str = "test") -> bool:
    """Whether the best weights that are there have captioned and scored the split."""
    folder = Path(config.output_dir)
    scored = folder / "result" / split / "metrics.json"
    settings = scored.with_name("config.yaml")
    weights = folder / checkpointing.BEST
    if not all(path.exists() for path in (scored, settings, weights)):
        return False
    if scored.stat().st_mtime < weights.stat().st_mtime:
        return False
    return load_config(settings) == config
