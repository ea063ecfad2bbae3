"""The metrics of the COCO caption evaluation: BLEU 1-4, METEOR, ROUGE-L, CIDEr and SPICE."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from captioning.caption_files import ImageId
from captioning.metrics.java import JavaError, java_version
from captioning.metrics.meteor import meteor_scores
from captioning.metrics.spice import spice_problem, spice_scores
from captioning.metrics.tokenizer import tokenize

_BLEU = ("Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4")


@dataclass(frozen=True)
class Scores:
    """What the metrics say of a set of captions.

    metrics: {metric: score of the whole set}; per_image: {image id: {metric: score}}; tokenizer:
    the one that was used; skipped: {metric: why it was not computed}.
    """

    metrics: dict[str, float]
    per_image: dict[ImageId, dict[str, float]]
    tokenizer: str
    skipped: dict[str, str]


def unavailable_metrics(spice: bool = False) -> dict[str, str]:
    """Return {metric: why this machine cannot compute it}; ask before captions are made."""
    needs_java = ["METEOR", "SPICE"] if spice else ["METEOR"]
    if importlib.util.find_spec("pycocoevalcap") is None:
        every = [*_BLEU, "ROUGE_L", "CIDEr", *needs_java]
        return dict.fromkeys(every, "pycocoevalcap is not installed")
    try:
        java = java_version()
    except JavaError as error:
        return dict.fromkeys(needs_java, str(error))
    problem = spice_problem(java) if spice else None
    return {"SPICE": problem} if problem else {}


def coco_scores(
    predictions: Mapping[ImageId, str],
    references: Mapping[ImageId, Sequence[str]],
    spice: bool = False,
    spice_timeout: float = 3600.0,
) -> Scores:
    """Score one caption an image against the image's references.

    Every id of `predictions` has one or more `references`; further references are not used. SPICE
    takes minutes, is computed on request, and is given up after `spice_timeout` seconds. A metric
    that cannot be computed or fails is in the result's `skipped`, and the others are kept.
    """
    ids = list(predictions)
    tokenized, tokenizer = tokenize({i: [predictions[i], *references[i]] for i in ids})
    captions = [tokenized[i][0] for i in ids]
    groups = [tokenized[i][1:] for i in ids]
    evaluators = {
        _BLEU: _bleu,
        ("METEOR",): lambda *texts: [meteor_scores(*texts)],
        ("ROUGE_L",): _rouge,
        ("CIDEr",): _cider,
    }
    if spice:
        evaluators["SPICE",] = lambda *texts: [spice_scores(*texts, spice_timeout)]

    metrics, per_image = {}, {i: {} for i in ids}
    skipped = unavailable_metrics(spice)
    for names, evaluator in evaluators.items():
        if names[0] in skipped:
            continue
        try:
            results = evaluator(captions, groups)
        # The captions may have cost hours: whatever goes wrong in one metric, keep the others.
        except Exception as error:
            reason = str(error) if isinstance(error, JavaError) else repr(error)
            skipped.update(dict.fromkeys(names, reason))
            continue
        for name, (total, each) in zip(names, results):
            metrics[name] = float(total)
            for image_id, score in zip(ids, each):
                per_image[image_id][name] = float(score)
    return Scores(metrics, per_image, tokenizer, skipped)


def _bleu(captions, groups):
    from pycocoevalcap.bleu.bleu import Bleu

    totals, each = Bleu(4).compute_score(*_by_index(captions, groups), verbose=0)
    return list(zip(totals, each))


def _rouge(captions, groups):
    from pycocoevalcap.rouge.rouge import Rouge

    _, each = Rouge().compute_score(*_by_index(captions, groups))
    # Splitting "" at spaces gives one (empty) word, which would match an empty reference's.
    each = [score if caption else 0.0 for score, caption in zip(each, captions)]
    return [(sum(each) / len(each), each)]


def _cider(captions, groups):
    from pycocoevalcap.cider.cider import Cider

    return [Cider().compute_score(*_by_index(captions, groups))]


def _by_index(captions, groups):
    """Return references and captions in pycocoevalcap's form, {key: list of sentences}."""
    return dict(enumerate(groups)), {i: [caption] for i, caption in enumerate(captions)}
