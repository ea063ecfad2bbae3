"""The evaluators by name. A new one is a module and a line here."""

from collections.abc import Iterable
from typing import Any, Optional

from captioning.metrics.evaluator import Evaluator, Metric, Settings
from captioning.metrics.options import missing_options
from captioning.runtime.errors import UserError
from captioning.runtime.registry import load

# Each evaluator's class, and the metrics that it computes, in the order of their columns in tables.
# The class is imported where it is used; the names of metrics are checked without it.
_DECLARED = {
    "coco": (
        "captioning.metrics.coco:Coco",
        "Bleu_1 Bleu_2 Bleu_3 Bleu_4 METEOR ROUGE_L CIDEr SPICE",
    ),
    "retrieval": ("captioning.metrics.retrieval:Retrieval", "R@1 R@5 R@10 median_rank"),
    "clipscore": ("captioning.metrics.clipscore:ClipScore", "CLIPScore RefCLIPScore"),
    "diversity": (
        "captioning.metrics.diversity:Diversity",
        "lex_div ttr distinct_1 distinct_2 distinct_captions vocab_use seen_captions "
        "train_vocab_use",
    ),
    "facts": ("captioning.metrics.facts:Facts", "true_facts wrong_facts scene_R@1 scene_R@5"),
    "chair": ("captioning.metrics.chair:Chair", "CHAIRs CHAIRi object_recall"),
    "pacs": ("captioning.metrics.clipscore:PacScore", "PAC-S RefPAC-S"),
    "clair": ("captioning.metrics.clair:Clair", "CLAIR"),
    "repetition": ("captioning.metrics.repetition:Repetition", "rep_2 rep_3 rep_4 loops"),
    "detail": ("captioning.metrics.detail:Detail", "nouns adjectives numbers relations"),
    "length": ("captioning.metrics.diversity:Length", "cap_len"),
    "perplexity": ("captioning.metrics.perplexity:Perplexity", "PPL"),
    "itm": ("captioning.metrics.itm:Itm", "ITM ITC"),
}
EVALUATORS: dict[str, str] = {name: entry for name, (entry, _) in _DECLARED.items()}
DEFAULT_METRICS = ("coco", "length", "diversity")

_PUBLISHED = ("cap_len", "lex_div", "R@1", "R@5", "CLIPScore", "PPL")  # the paper's table
_COMPUTED_BY = {metric: name for name, (_, own) in _DECLARED.items() for metric in own.split()}
# The evaluator of each metric, in the order of tables: the published table's columns first.
METRICS: dict[str, str] = {name: _COMPUTED_BY[name] for name in (*_PUBLISHED, *_COMPUTED_BY)}


def metric_of(name: str) -> Metric:
    """The metric of this name; imports its evaluator. A name without an evaluator is its title."""
    kinds = [load(EVALUATORS[METRICS[name]])] if name in METRICS else []
    return next((m for kind in kinds for m in kind.metrics if m.name == name), Metric(name, name))


def options_of(names: Iterable[str], config: Any) -> dict[str, Any]:
    """{option: value} of these evaluators in a configuration, files as paths on this disk."""
    found = {}
    for name in names:
        found.update(load(EVALUATORS[name]).Options.from_config(config))
    return found


def build_evaluators(
    names: Iterable[str] = DEFAULT_METRICS,
    settings: Optional[Settings] = None,
    **options: Any,
) -> list[Evaluator]:
    """Return the evaluators of these names, each once.

    options: {option: value} of all of them; each evaluator takes the options that it declares.
    Raises UserError for an impossible value, a missing option or file, and missing images.
    """
    built = []
    for name in dict.fromkeys(names):
        kind = load(EVALUATORS[name])
        fields = kind.Options.model_fields
        own = {option: options[option] for option in fields if option in options}
        missing = missing_options(kind.required, kind.Options, kind.Options.checked(own))
        if missing:
            meanings = " and ".join(fields[option].description for option in missing)
            raise UserError(f"metrics: {name} needs {' and '.join(missing)}: {meanings}")
        if kind.needs_images and (settings is None or settings.images is None):
            raise UserError(f"metrics: {name} needs the images: give their folder with --images")
        built.append(kind(settings, **own))
    return built
