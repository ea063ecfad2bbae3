"""The evaluators by name. A module is imported when its evaluator is chosen."""

from collections.abc import Iterable
from importlib import import_module

from captioning.metrics.evaluator import Evaluator, Settings
from captioning.runtime.errors import UserError

EVALUATORS = {
    "coco": "captioning.metrics.coco:Coco",
    "length": "captioning.metrics.length:Length",
    "diversity": "captioning.metrics.diversity:Diversity",
    "clipscore": "captioning.metrics.clipscore:ClipScore",
    "retrieval": "captioning.metrics.retrieval:Retrieval",
    "perplexity": "captioning.metrics.perplexity:Perplexity",
    "facts": "captioning.metrics.facts:Facts",
}
NEED_IMAGES = ("clipscore", "retrieval")
RUN_MODELS = ("clipscore", "retrieval", "perplexity")
DEFAULT_METRICS = ("coco", "length", "diversity")


_NOTHING_SPECIAL = Settings()


def build_evaluators(
    names: Iterable[str] = DEFAULT_METRICS, settings: Settings = _NOTHING_SPECIAL
) -> list[Evaluator]:
    """Return the evaluators of these names, each once. Raises UserError as they do."""
    names = list(dict.fromkeys(names))
    if "facts" in names and settings.facts_file is None:
        raise UserError("metrics: facts needs facts_file, the file that says what is in each image")
    for name in NEED_IMAGES:
        if name in names and settings.images is None:
            raise UserError(f"metrics: {name} needs the images: give their folder with --images")
    return [_class(EVALUATORS[name])(settings) for name in names]


def _class(path):
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
