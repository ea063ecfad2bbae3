"""The rerankers by name. A new one is an entry here, and the class of its scorer."""

from dataclasses import fields
from typing import Any, NamedTuple, Optional

from decoding.rerank import Reranking


class RerankerEntry(NamedTuple):
    """A reranker's scorer and keys.

    scorer: a `captioning.models.reranking.Scorer`. model: the key that names its model and has to
    be set. options: an evaluator or reward whose `Options` declare its further keys. weighted:
    whether it uses rerank_weight.
    """

    scorer: str
    model: Optional[str] = None
    options: Optional[str] = None
    weighted: bool = False


_SCORERS = "captioning.models.reranking"
RERANKERS: dict[str, RerankerEntry] = {
    "mmi": RerankerEntry(f"{_SCORERS}:MutualInformation", weighted=True),
    "mbr": RerankerEntry(f"{_SCORERS}:MinimumBayesRisk"),
    "clip": RerankerEntry(
        f"{_SCORERS}:ClipScorer", "clip_model", "captioning.metrics.clipscore:ClipScore"
    ),
    "itm": RerankerEntry(
        f"{_SCORERS}:ImageTextMatching", "itm_model", "captioning.metrics.itm:Itm"
    ),
    "judge": RerankerEntry(f"{_SCORERS}:Judge", "rerank_judge", weighted=True),
}


def reranking_of(values: Any, num_return: int = 1) -> Optional[Reranking]:
    """The reranking that keys set. None if `rerank` is None, and for mmi of weight 0.

    values: has keys as attributes; those it lacks have `Reranking`'s defaults. Raises ValueError
    for a model that is missing.
    """
    entry = RERANKERS.get(values.rerank)
    if entry is None or (values.rerank, values.rerank_weight) == ("mmi", 0):
        return None
    names = {field.name for field in fields(Reranking)} - {"model", "num_return"}
    given = {name: getattr(values, name) for name in names if hasattr(values, name)}
    if not entry.weighted:
        given["rerank_weight"] = None
    model = getattr(values, entry.model) if entry.model else None
    if entry.model and not model:
        raise ValueError(f"rerank is {values.rerank}, which needs {entry.model}")
    return Reranking(**given, model=model, num_return=num_return)
