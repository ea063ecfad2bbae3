"""The metrics of the COCO caption evaluation: BLEU 1-4, METEOR, ROUGE-L, CIDEr and SPICE."""

import importlib.util

from captioning.metrics import bootstrap
from captioning.metrics.bleu import NAMES as BLEU
from captioning.metrics.bleu import bleu_scores
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.metrics.java import JavaError, java_version
from captioning.metrics.meteor import meteor_scores
from captioning.metrics.spice import spice_problem, spice_scores


class Coco(Evaluator):
    """pycocoevalcap's scores of the captions after PTB tokenisation.

    A metric that cannot be computed or fails is in the result's `skipped`, and the others are kept.
    The intervals of ROUGE-L, CIDEr and SPICE are those of a mean, CIDEr's with the n-gram weights
    of the whole set.
    """

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.names = (*BLEU, "METEOR", "ROUGE_L", "CIDEr", *(["SPICE"] if settings.spice else []))
        self.reference_metrics = self.names

    def unavailable(self) -> dict[str, str]:
        if importlib.util.find_spec("pycocoevalcap") is None:
            return dict.fromkeys(self.names, "pycocoevalcap is not installed")
        try:
            java = java_version()
        except JavaError as error:
            needs_java = [name for name in self.names if name in ("METEOR", "SPICE")]
            return dict.fromkeys(needs_java, str(error))
        problem = spice_problem(java) if self.settings.spice else None
        return {"SPICE": problem} if problem else {}

    def evaluate(self, captions: CaptionSet) -> Result:
        tokenized = captions.tokenized
        result = Result(
            metrics={},
            settings={"tokenizer": tokenized.tokenizer},
            skipped=self.unavailable(),
        )
        for names, scorer in self._scorers().items():
            if names[0] in result.skipped:
                continue
            try:
                scored = scorer(tokenized.captions, tokenized.groups)
            # The captions may have cost hours: whatever goes wrong in one metric, keep the others.
            except Exception as error:
                reason = str(error) if isinstance(error, JavaError) else repr(error)
                result.skipped.update(dict.fromkeys(names, reason))
                continue
            for name, (estimate, each) in zip(names, scored):
                result.metrics[name] = estimate
                result.per_image[name] = each
        return result

    def _scorers(self):
        """Return {metrics: function of N captions and N groups to (Estimate, N scores) of each}."""
        scorers = {
            BLEU: bleu_scores,
            ("METEOR",): lambda *texts: [meteor_scores(*texts)],
            ("ROUGE_L",): lambda *texts: [_with_mean(_rouge(*texts))],
            ("CIDEr",): lambda *texts: [_with_mean(_cider(*texts))],
        }
        if self.settings.spice:
            limits = self.settings.spice_timeout, self.settings.spice_heap
            scorers["SPICE",] = lambda *texts: [_with_mean(spice_scores(*texts, *limits))]
        return scorers


def _with_mean(each):
    each = [float(score) for score in each]
    return bootstrap.mean(each), each


def _rouge(captions, groups):
    from pycocoevalcap.rouge.rouge import Rouge

    _, each = Rouge().compute_score(*_by_index(captions, groups))
    # Splitting "" at spaces gives one (empty) word, which would match an empty reference's.
    return [score if caption else 0.0 for score, caption in zip(each, captions)]


def _cider(captions, groups):
    from pycocoevalcap.cider.cider import Cider

    if not any(text for group in groups for text in group):
        return [0.0] * len(captions)  # no n-gram has a weight, of which Cider takes the largest

    return Cider().compute_score(*_by_index(captions, groups))[1]


def _by_index(captions, groups):
    """Return references and captions in pycocoevalcap's form, {key: list of sentences}."""
    return dict(enumerate(groups)), {i: [caption] for i, caption in enumerate(captions)}
