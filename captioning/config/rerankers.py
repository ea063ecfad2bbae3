"""Lists the rerankers by name. A new reranker needs an entry here and a scorer."""

from typing import NamedTuple, Optional


class RerankerEntry(NamedTuple):
    """The scorer of a reranker and the model that it needs.

    - scorer: "module:function" of a scorer, see `captioning.models.reranking`
    - model: the configuration key that names the scorer's model; None if the scorer has no model
    - model_class: "module:class" that loads this model
    """

    scorer: str
    model: Optional[str] = None
    model_class: Optional[str] = None


RERANKERS: dict[str, RerankerEntry] = {
    "mmi": RerankerEntry("captioning.models.reranking:mutual_information"),
    "clip": RerankerEntry(
        "captioning.models.reranking:clip_similarity",
        "clip_model",
        "captioning.metrics.clip:Clip",
    ),
    "itm": RerankerEntry(
        "captioning.models.reranking:match_probability",
        "itm_model",
        "captioning.metrics.itm:ItmScorer",
    ),
}
