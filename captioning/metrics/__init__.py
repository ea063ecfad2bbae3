"""Scores captions, with one metric's evaluator per file. To add one, write a file such as
`repetition.py`, and add a line here. The configuration imports all files, whose options are keys:
import a large library where it is used.
"""

# {evaluator: "module:class"}. Tables keep the order of this list.
EVALUATORS = {
    "coco": "captioning.metrics.coco:Coco",
    "retrieval": "captioning.metrics.retrieval:Retrieval",
    "clipscore": "captioning.metrics.clipscore:ClipScore",
    "diversity": "captioning.metrics.diversity:Diversity",
    "facts": "captioning.metrics.facts:Facts",
    "chair": "captioning.metrics.chair:Chair",
    "pacs": "captioning.metrics.clipscore:PacScore",
    "clair": "captioning.metrics.clair:Clair",
    "checklist": "captioning.metrics.checklist:Checklist",
    "repetition": "captioning.metrics.repetition:Repetition",
    "detail": "captioning.metrics.detail:Detail",
    "length": "captioning.metrics.diversity:Length",
    "perplexity": "captioning.metrics.perplexity:Perplexity",
    "itm": "captioning.metrics.itm:Itm",
}
DEFAULT_EVALUATORS = ("coco", "length", "diversity")
