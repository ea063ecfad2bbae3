"""Registers the evaluators and the metrics that each evaluator computes.

To add an evaluator, write a module and add an entry to `_DECLARED`. The module of an evaluator is
imported only when the evaluator is used, so that the names and titles of metrics are available
without the libraries that the evaluator needs.
"""

from typing import NamedTuple, Optional


class Metric(NamedTuple):
    """The name of a metric, and how tables and the report show the metric.

    name: the key in score files. title, decimals: used in tables. needs_references: whether the
    metric can be computed only with references.

    The other fields are for the report, which has a table that compares runs. meaning: explains the
    metric in one clause. A metric without a meaning is not in this table; the report lists it among
    the other scores. unit, factor: the report shows value * factor in `unit`. report_title,
    report_decimals: replace title and decimals in the report.
    """

    name: str
    title: str
    decimals: int = 3
    meaning: Optional[str] = None
    unit: str = ""
    report_title: Optional[str] = None
    report_decimals: Optional[int] = None
    factor: float = 1.0
    needs_references: bool = False

    def in_report(self) -> "Metric":
        """Return the metric with the title and decimals that the report shows."""
        decimals = self.decimals if self.report_decimals is None else self.report_decimals
        return self._replace(title=self.report_title or self.title, decimals=decimals)

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title


# {evaluator: ("module:class", the metrics that it computes)}. METRICS keeps the order of this dict.
_DECLARED: dict[str, tuple[str, tuple[Metric, ...]]] = {
    "coco": (
        "captioning.metrics.coco:Coco",
        (
            *(Metric(f"Bleu_{n}", f"BLEU-{n}", needs_references=True) for n in (1, 2, 3)),
            Metric(
                "Bleu_4",
                "BLEU-4",
                3,
                "share of four-word phrases that occur in a reference",
                needs_references=True,
            ),
            Metric(
                "METEOR",
                "METEOR",
                3,
                "words shared with a reference, including synonyms and stems",
                needs_references=True,
            ),
            Metric("ROUGE_L", "ROUGE-L", needs_references=True),
            Metric(
                "CIDEr",
                "CIDEr",
                3,
                "agreement with the references; rare phrases count more",
                needs_references=True,
            ),
            Metric(
                "SPICE",
                "SPICE",
                3,
                "objects, attributes and relations shared with references",
                needs_references=True,
            ),
        ),
    ),
    "retrieval": (
        "captioning.metrics.retrieval:Retrieval",
        (
            Metric(
                "R@1",
                "R@1",
                1,
                "self-retrieval: captions whose own image is the nearest one, by CLIP",
                "%",
                "CLIP R@1",
            ),
            Metric(
                "R@5",
                "R@5",
                1,
                "self-retrieval: captions whose image is among the best five",
                "%",
                "CLIP R@5",
            ),
            Metric("R@10", "R@10", 1),
            Metric("median_rank", "Med. Rank", 1),
        ),
    ),
    "clipscore": (
        "captioning.metrics.clipscore:ClipScore",
        (
            Metric("CLIPScore", "CLIPScore", 1, "how well caption and image agree, by CLIP"),
            Metric("RefCLIPScore", "RefCLIPScore", 1, needs_references=True),
            Metric("CLIPScore_sentences", "CLIPScore Sent.", 1),
        ),
    ),
    "diversity": (
        "captioning.metrics.diversity:Diversity",
        (
            Metric(
                "lex_div",
                "Lex. Div.",
                3,
                "different words in all captions together",
                "",
                "Distinct words",
                0,
                1000,
            ),
            Metric("ttr", "TTR"),
            Metric("distinct_1", "Dist-1"),
            Metric("distinct_2", "Dist-2"),
            Metric("distinct_captions", "Dist. Cap."),
            Metric("vocab_use", "Vocab. Use", needs_references=True),
            Metric("seen_captions", "Seen Cap."),
            Metric("train_vocab_use", "Train Vocab. Use"),
        ),
    ),
    "facts": (
        "captioning.metrics.facts:Facts",
        (
            Metric(
                "true_facts",
                "True Facts",
                2,
                "stated facts that are true for the image",
                "a caption",
                "True facts",
            ),
            Metric(
                "wrong_facts",
                "Wrong %",
                1,
                "share of the stated facts that are wrong",
                "%",
                "Wrong facts",
            ),
            Metric(
                "scene_R@1",
                "Scene R@1",
                1,
                "self-retrieval: captions that fit their own image best",
                "%",
                "R@1",
            ),
            Metric(
                "scene_R@5",
                "Scene R@5",
                1,
                "self-retrieval: captions whose own image is among the best five",
                "%",
                "R@5",
            ),
        ),
    ),
    "chair": (
        "captioning.metrics.chair:Chair",
        (
            Metric(
                "CHAIRs",
                "CHAIRs",
                1,
                "captions that name an object which is not there",
                "%",
                needs_references=True,
            ),
            Metric(
                "CHAIRi",
                "CHAIRi",
                1,
                "share of the named objects that are not there",
                "%",
                needs_references=True,
            ),
            Metric(
                "object_recall",
                "Obj. Recall",
                1,
                "share of the images' objects that are named",
                "%",
                "Objects named",
                needs_references=True,
            ),
        ),
    ),
    "pacs": (
        "captioning.metrics.clipscore:PacScore",
        (
            Metric("PAC-S", "PAC-S", 1, "CLIPScore with CLIP weights tuned for captions"),
            Metric("RefPAC-S", "RefPAC-S", 1, needs_references=True),
        ),
    ),
    "clair": (
        "captioning.metrics.clair:Clair",
        (
            Metric(
                "CLAIR",
                "CLAIR",
                1,
                "how likely the caption describes the references' image, by a language model",
                needs_references=True,
            ),
        ),
    ),
    "checklist": (
        "captioning.metrics.checklist:Checklist",
        (
            Metric(
                "checklist_coverage",
                "Coverage",
                1,
                "questions of a checklist that the caption answers",
                "%",
            ),
            Metric(
                "checklist_precision",
                "Precision",
                1,
                "right answers among the answers to a checklist",
                "%",
            ),
        ),
    ),
    "repetition": (
        "captioning.metrics.repetition:Repetition",
        (
            *(Metric(f"rep_{n}", f"Rep-{n}", 1) for n in (2, 3, 4)),
            Metric("loops", "Loops", 1, "captions that say a phrase twice in a row", "%"),
        ),
    ),
    "detail": (
        "captioning.metrics.detail:Detail",
        tuple(
            Metric(kind, kind.capitalize(), 2)
            for kind in ("nouns", "adjectives", "numbers", "relations")
        ),
    ),
    "length": (
        "captioning.metrics.diversity:Length",
        (
            Metric(
                "cap_len", "Cap. Len.", 2, "words in a caption, on average", "words", "Length", 1
            ),
        ),
    ),
    "perplexity": (
        "captioning.metrics.perplexity:Perplexity",
        (
            Metric(
                "PPL", "PPL", 1, "how surprising the caption's words are to GPT-2", "", "Perplexity"
            ),
        ),
    ),
    "itm": (
        "captioning.metrics.itm:Itm",
        (
            Metric("ITM", "ITM", 1, "how sure BLIP's filter is that image and caption match", "%"),
            Metric("ITC", "ITC", 1),
        ),
    ),
}
# {evaluator: "module:class"}
EVALUATORS: dict[str, str] = {name: entry for name, (entry, _) in _DECLARED.items()}
# {evaluator: the names of its metrics}
COMPUTED = {name: tuple(m.name for m in metrics) for name, (_, metrics) in _DECLARED.items()}
DEFAULT_METRICS = ("coco", "length", "diversity")  # names of evaluators

_PUBLISHED = ("cap_len", "lex_div", "R@1", "R@5", "CLIPScore", "PPL")  # columns of SMILE's paper
_BY_NAME = {metric.name: metric for _, metrics in _DECLARED.values() for metric in metrics}
# {metric: Metric}, in the order of columns in tables. The columns of the paper's table are first.
METRICS: dict[str, Metric] = {name: _BY_NAME[name] for name in (*_PUBLISHED, *_BY_NAME)}


def metric_of(name: str) -> Metric:
    """Return the metric of this name. An unknown name becomes a metric with the name as title."""
    return METRICS.get(name) or Metric(name, name)
