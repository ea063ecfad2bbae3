"""The evaluators by name."""

from collections.abc import Iterable

from captioning.metrics.chair import Chair
from captioning.metrics.clair import Clair
from captioning.metrics.clipscore import ClipScore, PacScore
from captioning.metrics.coco import Coco
from captioning.metrics.detail import Detail
from captioning.metrics.diversity import Diversity, Length
from captioning.metrics.evaluator import Evaluator, Settings
from captioning.metrics.facts import Facts
from captioning.metrics.perplexity import Perplexity
from captioning.metrics.repetition import Repetition
from captioning.metrics.retrieval import Retrieval
from captioning.runtime.errors import UserError

EVALUATORS: dict[str, type[Evaluator]] = {
    "coco": Coco,
    "length": Length,
    "diversity": Diversity,
    "clipscore": ClipScore,
    "retrieval": Retrieval,
    "perplexity": Perplexity,
    "facts": Facts,
    "chair": Chair,
    "pacs": PacScore,
    "repetition": Repetition,
    "detail": Detail,
    "clair": Clair,
}
NEED_IMAGES = ("clipscore", "retrieval", "pacs")
DEFAULT_METRICS = ("coco", "length", "diversity")

_NOTHING_SPECIAL = Settings()


def build_evaluators(
    names: Iterable[str] = DEFAULT_METRICS, settings: Settings = _NOTHING_SPECIAL
) -> list[Evaluator]:
    """Return the evaluators of these names, each once. Raises UserError as they do."""
    names = list(dict.fromkeys(names))
    if "facts" in names and settings.facts_file is None:
        raise UserError("metrics: facts needs facts_file, the file that says what is in each image")
    if "chair" in names and not settings.objects:
        raise UserError("metrics: chair needs objects_file (--objects): what is in each image")
    for name in NEED_IMAGES:
        if name in names and settings.images is None:
            raise UserError(f"metrics: {name} needs the images: give their folder with --images")
    return [EVALUATORS[name](settings) for name in names]
