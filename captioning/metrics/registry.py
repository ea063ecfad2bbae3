"""The metrics of evaluators with the former interface, by evaluator."""

from functools import partial

from captioning.metrics.base import Metric

ReferenceMetric = partial(Metric, needs_references=True)

# {evaluator: ("module:class", the metrics that it computes)}. METRICS keeps the order of this dict.
_DECLARED = {
    "coco": (
        "captioning.metrics.coco:Coco",
        (
            *(ReferenceMetric(f"Bleu_{n}", f"BLEU-{n}", decimals=3) for n in (1, 2, 3)),
            ReferenceMetric(
                "Bleu_4",
                "BLEU-4",
                decimals=3,
                meaning="share of four-word phrases that occur in a reference",
            ),
            ReferenceMetric(
                "METEOR",
                "METEOR",
                decimals=3,
                meaning="words shared with a reference, including synonyms and stems",
            ),
            ReferenceMetric("ROUGE_L", "ROUGE-L", decimals=3),
            ReferenceMetric(
                "CIDEr",
                "CIDEr",
                decimals=3,
                meaning="agreement with the references; rare phrases count more",
                in_sweeps=True,
            ),
            ReferenceMetric(
                "SPICE",
                "SPICE",
                decimals=3,
                meaning="objects, attributes and relations shared with references",
            ),
        ),
    ),
    "retrieval": (
        "captioning.metrics.retrieval:Retrieval",
        (
            Metric(
                "R@1",
                "R@1",
                meaning="self-retrieval: captions whose own image is the nearest one, by CLIP",
                unit="%",
                report_title="CLIP R@1",
                in_sweeps=True,
            ),
            Metric(
                "R@5",
                "R@5",
                meaning="self-retrieval: captions whose image is among the best five",
                unit="%",
                report_title="CLIP R@5",
            ),
            Metric("R@10", "R@10"),
            Metric("median_rank", "Med. Rank"),
        ),
    ),
    "clipscore": (
        "captioning.metrics.clipscore:ClipScore",
        (
            Metric(
                "CLIPScore",
                "CLIPScore",
                meaning="how well caption and image agree, by CLIP",
                in_sweeps=True,
            ),
            ReferenceMetric("RefCLIPScore", "RefCLIPScore"),
            Metric("CLIPScore_sentences", "CLIPScore Sent."),
        ),
    ),
    "diversity": (
        "captioning.metrics.diversity:Diversity",
        (
            Metric(
                "lex_div",
                "Lex. Div.",
                decimals=3,
                meaning="different words in all captions together",
                report_title="Distinct words",
                report_decimals=0,
                factor=1000,
                in_sweeps=True,
            ),
            Metric("ttr", "TTR", decimals=3),
            Metric("distinct_1", "Dist-1", decimals=3),
            Metric("distinct_2", "Dist-2", decimals=3),
            Metric("distinct_captions", "Dist. Cap.", decimals=3),
            ReferenceMetric("vocab_use", "Vocab. Use", decimals=3),
            Metric("seen_captions", "Seen Cap.", decimals=3),
            Metric("train_vocab_use", "Train Vocab. Use", decimals=3),
        ),
    ),
    "facts": (
        "captioning.metrics.facts:Facts",
        (
            Metric(
                "true_facts",
                "True Facts",
                decimals=2,
                meaning="stated facts that are true for the image",
                unit="a caption",
                report_title="True facts",
                in_sweeps=True,
            ),
            Metric(
                "wrong_facts",
                "Wrong %",
                meaning="share of the stated facts that are wrong",
                unit="%",
                report_title="Wrong facts",
                in_sweeps=True,
            ),
            Metric(
                "scene_R@1",
                "Scene R@1",
                meaning="self-retrieval: captions that fit their own image best",
                unit="%",
                report_title="R@1",
                in_sweeps=True,
            ),
            Metric(
                "scene_R@5",
                "Scene R@5",
                meaning="self-retrieval: captions whose own image is among the best five",
                unit="%",
                report_title="R@5",
            ),
        ),
    ),
    "chair": (
        "captioning.metrics.chair:Chair",
        (
            ReferenceMetric(
                "CHAIRs",
                "CHAIRs",
                meaning="captions that name an object which is not there",
                unit="%",
            ),
            ReferenceMetric(
                "CHAIRi",
                "CHAIRi",
                meaning="share of the named objects that are not there",
                unit="%",
                in_sweeps=True,
            ),
            ReferenceMetric(
                "object_recall",
                "Obj. Recall",
                meaning="share of the images' objects that are named",
                unit="%",
                report_title="Objects named",
            ),
        ),
    ),
    "pacs": (
        "captioning.metrics.clipscore:PacScore",
        (
            Metric("PAC-S", "PAC-S", meaning="CLIPScore with CLIP weights tuned for captions"),
            ReferenceMetric("RefPAC-S", "RefPAC-S"),
        ),
    ),
    "clair": (
        "captioning.metrics.clair:Clair",
        (
            ReferenceMetric(
                "CLAIR",
                "CLAIR",
                meaning="how likely the caption describes the references' image, "
                "by a language model",
            ),
        ),
    ),
    "checklist": (
        "captioning.metrics.checklist:Checklist",
        (
            Metric(
                "checklist_coverage",
                "Coverage",
                meaning="questions of a checklist that the caption answers",
                unit="%",
            ),
            Metric(
                "checklist_precision",
                "Precision",
                meaning="right answers among the answers to a checklist",
                unit="%",
            ),
        ),
    ),
    "repetition": (
        "captioning.metrics.repetition:Repetition",
        (
            *(Metric(f"rep_{n}", f"Rep-{n}") for n in (2, 3, 4)),
            Metric(
                "loops",
                "Loops",
                meaning="captions that say a phrase twice in a row",
                unit="%",
                in_sweeps=True,
            ),
        ),
    ),
    "detail": (
        "captioning.metrics.detail:Detail",
        tuple(
            Metric(kind, kind.capitalize(), decimals=2)
            for kind in ("nouns", "adjectives", "numbers", "relations")
        ),
    ),
    "length": (
        "captioning.metrics.diversity:Length",
        (
            Metric(
                "cap_len",
                "Cap. Len.",
                decimals=2,
                meaning="words in a caption, on average",
                unit="words",
                report_title="Length",
                report_decimals=1,
                in_sweeps=True,
            ),
        ),
    ),
    "perplexity": (
        "captioning.metrics.perplexity:Perplexity",
        (
            Metric(
                "PPL",
                "PPL",
                meaning="how surprising the caption's words are to GPT-2",
                report_title="Perplexity",
                in_sweeps=True,
            ),
        ),
    ),
    "itm": (
        "captioning.metrics.itm:Itm",
        (
            Metric(
                "ITM",
                "ITM",
                meaning="how sure BLIP's filter is that image and caption match",
                unit="%",
            ),
            Metric("ITC", "ITC"),
        ),
    ),
}
METRICS_OF = {name: metrics for name, (_, metrics) in _DECLARED.items()}
