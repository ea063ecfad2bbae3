"""Lists the rerankers by name. A new reranker needs an entry here and a scorer."""

from dataclasses import fields
from typing import Any, NamedTuple, Optional

from decoding.rerank import Reranking


class RerankerEntry(NamedTuple):
    """The scorer and the configuration keys of a reranker.

    - scorer: "module:function" of a scorer, see `captioning.models.reranking`
    - model: the configuration key that names the scorer's model; None if the scorer has no model
    - model_class: "module:class" that loads this model
    - options: "module:class" of the metric that declares keys of this reranker, including `model`
    """

    scorer: str
    model: Optional[str] = None
    model_class: Optional[str] = None
    options: Optional[str] = None


RERANKERS: dict[str, RerankerEntry] = {
    "mmi": RerankerEntry("captioning.models.reranking:mutual_information"),
    "clip": RerankerEntry(
        "captioning.models.reranking:clip_similarity",
        "clip_model",
        "captioning.metrics.clip:Clip",
        "captioning.metrics.clipscore:ClipScore",
    ),
    "itm": RerankerEntry(
        "captioning.models.reranking:match_probability",
        "itm_model",
        "captioning.metrics.itm:ItmScorer",
        "captioning.metrics.itm:Itm",
    ),
}


def values_of(settings: type, values: Any) -> dict[str, Any]:
    """Return {field: value} for the fields of a dataclass that are also attributes of `values`.

    settings: the dataclass. values: any object with attributes, such as a `Config`.
    """
    names = (field.name for field in fields(settings))
    return {name: getattr(values, name) for name in names if hasattr(values, name)}


def build_reranking(values: Any, num_return: int = 1) -> Optional[Reranking]:
    """Return the settings of reranking; None if `rerank` is None, or mmi with weight 0.

    values: an object with configuration keys as attributes, such as a `Config`. Fields of
    `Reranking` that it lacks keep their defaults, but it needs `rerank`, `rerank_weight` and the
    reranker's `model`. num_return: captions per image. Raises ValueError if `model` is not set.
    """
    entry = RERANKERS.get(values.rerank)
    if entry is None or (values.rerank, values.rerank_weight) == ("mmi", 0):
        return None
    model = getattr(values, entry.model) if entry.model else None
    if entry.model and not model:
        raise ValueError(f"rerank is {values.rerank}, which needs {entry.model}")
    settings = {**values_of(Reranking, values), "model": model, "num_return": num_return}
    if values.rerank != "mmi":
        settings["rerank_weight"] = None
    return Reranking(**settings)
