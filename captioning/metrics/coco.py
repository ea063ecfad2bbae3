"""Computes the metrics of the COCO caption evaluation: BLEU 1-4, METEOR, ROUGE-L, CIDEr and SPICE.

All values equal the values of pycocoevalcap. The intervals of BLEU are computed from the n-gram
counts that pycocoevalcap computes. METEOR and SPICE (Anderson et al. 2016) run Java programs that
pycocoevalcap contains.
"""

import importlib.util
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Callable, Optional

import numpy as np
from pydantic import Field

from captioning.metrics.bootstrap import Estimate, bootstrap_intervals
from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores
from captioning.metrics.java import JavaError, java_process, java_version
from captioning.metrics.meteor import meteor_scores
from captioning.metrics.options import Options

ORDERS = 4
BLEU = tuple(f"Bleu_{order}" for order in range(1, ORDERS + 1))

# pycocoevalcap's BLEU adds _TINY to numerators and _SMALL to denominators.
_TINY, _SMALL = 1e-15, 1e-9

# The last version of Java that has a JavaScript engine, which SPICE needs.
_LAST_JAVA = 14


class CocoOptions(Options):
    spice: Annotated[bool, "scoring"] = Field(
        False, description="also compute SPICE, which is slow"
    )
    spice_timeout: Annotated[float, "scoring"] = Field(
        3600.0, gt=0, description="the time limit of SPICE, in seconds"
    )
    spice_heap: Annotated[str, "scoring"] = Field(
        "8G",
        pattern=r"^[1-9][0-9]*[kKmMgG]$",  # Java's format of an amount of memory
        description="the memory limit of SPICE's Java, such as 4G or 800m",
    )


class Coco(Evaluator):
    """Scores captions with pycocoevalcap, after PTB tokenisation.

    A metric that cannot be computed is listed in `Scores.skipped`; other metrics are kept. The
    intervals of ROUGE-L, CIDEr and SPICE are bootstrap intervals of a mean over captions. For
    CIDEr, all resamples use the n-gram weights (idf) of the whole set.
    """

    name = "coco"
    Options = CocoOptions

    def prepare(self) -> None:
        if not self.options.spice:
            self.metric_names = self.metric_names[:-1]

    def unavailable(self) -> dict[str, str]:
        if importlib.util.find_spec("pycocoevalcap") is None:
            return dict.fromkeys(self.metric_names, "pycocoevalcap is not installed")
        try:
            java = java_version()
        except JavaError as error:
            needs_java = [name for name in self.metric_names if name in ("METEOR", "SPICE")]
            return dict.fromkeys(needs_java, str(error))
        problem = spice_problem(java) if self.options.spice else None
        return {"SPICE": problem} if problem else {}

    def evaluate(self, captions: CaptionSet) -> Scores:
        texts, groups, tokenizer = captions.tokenized
        scores = Scores({}, settings={"tokenizer": tokenizer}, skipped=self.unavailable())
        for names, scorer in self._scorers().items():
            if names[0] in scores.skipped:
                continue
            try:
                scores.update(scorer(texts, groups))
            # Captioning may have taken hours, so that an error in one metric must not lose the
            # scores of other metrics.
            except Exception as error:
                reason = str(error) if isinstance(error, JavaError) else repr(error)
                scores.skipped.update(dict.fromkeys(names, reason))
        return scores

    def _scorers(self) -> dict[tuple[str, ...], Callable]:
        """Return {names of metrics: function that computes these metrics}.

        All functions have the parameters of `bleu_scores`.
        """
        options = self.options
        scorers = {
            BLEU: bleu_scores,
            ("METEOR",): meteor_scores,
            ("ROUGE_L",): rouge_scores,
            ("CIDEr",): cider_scores,
            ("SPICE",): lambda captions, references: spice_scores(
                captions, references, options.spice_timeout, options.spice_heap
            ),
        }
        return {names: scorer for names, scorer in scorers.items() if names[0] in self.metric_names}


def rouge_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return ROUGE-L. For the parameters, see `bleu_scores`."""
    from pycocoevalcap.rouge.rouge import Rouge

    _, each = Rouge().compute_score(*_as_coco_dicts(captions, references))
    # pycocoevalcap splits "" into one empty word, which would match an empty reference. Therefore
    # an empty caption gets 0 here.
    each = [float(score) if caption else 0.0 for score, caption in zip(each, captions)]
    return Scores.from_means({"ROUGE_L": each})


def cider_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return CIDEr. For the parameters, see `bleu_scores`."""
    from pycocoevalcap.cider.cider import Cider

    each = np.zeros(len(captions))
    if any(map(any, references)):  # Cider fails if all references are empty
        each = Cider().compute_score(*_as_coco_dicts(captions, references))[1]
    return Scores.from_means({"CIDEr": each.tolist()})


def _as_coco_dicts(captions, groups):
    """Return references and captions in pycocoevalcap's form, {key: list of sentences}."""
    return dict(enumerate(groups)), {i: [caption] for i, caption in enumerate(captions)}


def bleu_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return BLEU 1-4 of the whole set and of each caption (Papineni et al. 2002).

    captions: N tokenised captions; references: N lists of tokenised captions. The brevity penalty
    uses the reference length that is closest to the caption's length; in a tie, the shorter one.
    """
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=ORDERS)
    for caption, group in zip(captions, references):
        scorer += (caption, group)
    totals, each = scorer.compute_score(option="closest", verbose=0)
    rows = []  # one per caption; `bleu_of_sums` takes sums of such rows
    for counts in scorer.ctest:
        words = counts["testlen"]
        closest = min(counts["reflen"], key=lambda length: (abs(length - words), length))
        rows.append([*counts["correct"], *counts["guess"], words, closest])
    intervals = bootstrap_intervals(np.array(rows, dtype=float), bleu_of_sums)
    estimates = [
        Estimate(total, low, high, len(captions)) for total, (low, high) in zip(totals, intervals)
    ]
    return Scores(dict(zip(BLEU, estimates)), dict(zip(BLEU, each)))


def bleu_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return BLEU 1-4 (R, 4) of R rows of summed counts.

    sums: (R, 10), in this order:

    - clipped n-gram matches for n = 1 to 4 (4 columns)
    - n-grams in the captions for n = 1 to 4 (4)
    - words in the captions (1)
    - words in the references that are closest to the captions in length (1)
    """
    matches, ngrams = sums[:, :ORDERS], sums[:, ORDERS : 2 * ORDERS]
    brevity = (sums[:, -2:-1] + _TINY) / (sums[:, -1:] + _SMALL)  # (R, 1)
    precisions = np.cumprod((matches + _TINY) / (ngrams + _SMALL), axis=1)
    scores = precisions ** (1 / np.arange(1, ORDERS + 1))
    return scores * np.exp(1 - 1 / np.minimum(brevity, 1))


def spice_problem(java: int) -> Optional[str]:
    """Return why SPICE cannot run, in one line; None if it can. java: Java's major version."""
    problems = []
    if java > _LAST_JAVA:
        problems.append(f"it needs Java 8 to {_LAST_JAVA}, this is Java {java}")
    library = _jar().parent / "lib"
    models = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
    if not all((library / name).is_file() for name in models):
        problems.append(
            "its models are missing (fetch them once: "
            "python -m pycocoevalcap.spice.get_stanford_models)"
        )
    return "; ".join(problems) or None


def spice_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]], time_limit: float, heap: str
) -> Scores:
    """Return SPICE's F score. Raises JavaError.

    captions: N tokenised captions; references: N lists of tokenised captions; time_limit: seconds;
    heap: the memory limit, such as "8G". SPICE can cache its parses, but this is not used: the
    cache is in the folder of the installed package, and it fails on new systems.
    """
    items = [
        {"image_id": index, "test": caption, "refs": list(group)}
        for index, (caption, group) in enumerate(zip(captions, references))
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "captions.json"), Path(folder, "scores.json")
        source.write_text(json.dumps(items), encoding="ascii")
        arguments = [f"-Xmx{heap}", "-jar", _jar(), source, "-out", result, "-silent"]
        with java_process(arguments, time_limit) as (process, _):
            process.communicate()
            scored = json.loads(result.read_text(encoding="utf-8"))
    by_index = {item["image_id"]: float(item["scores"]["All"]["f"]) for item in scored}
    return Scores.from_means({"SPICE": [by_index[index] for index in range(len(captions))]})


def _jar():
    from pycocoevalcap.spice import spice

    return Path(spice.__file__).with_name(spice.SPICE_JAR)
