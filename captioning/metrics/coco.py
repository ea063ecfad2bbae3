"""Computes the metrics of the COCO caption evaluation: BLEU 1-4, METEOR, ROUGE-L, CIDEr and SPICE.

All values equal the values of pycocoevalcap. The intervals of BLEU are computed from the n-gram
counts that pycocoevalcap computes. METEOR and SPICE (Anderson et al. 2016) run Java programs that
pycocoevalcap contains.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Optional

import numpy as np

from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.cider_df import Corpus, read_corpus
from captioning.metrics.intervals import estimates
from captioning.metrics.java import JavaError, jar, java_version, run_java
from captioning.metrics.meteor import meteor_scores

LAST_JAVA_OF_SPICE = 14  # the last one with the JavaScript engine that SPICE needs

_reference_metric = partial(Metric, decimals=3, needs_references=True)


class Coco(Evaluator):
    """Scores captions after PTB tokenisation. A metric that fails is listed in `Scores.skipped`.

    The intervals of ROUGE-L, CIDEr and SPICE are those of a mean over captions. For CIDEr, all
    resamples use the same n-gram weights (idf).
    """

    metrics = (
        *(_reference_metric(f"Bleu_{n}", f"BLEU-{n}") for n in (1, 2, 3)),
        _reference_metric(
            "Bleu_4", "BLEU-4", meaning="share of four-word phrases that occur in a reference"
        ),
        _reference_metric(
            "METEOR",
            "METEOR",
            meaning="words shared with a reference, including synonyms and stems",
            only_english=True,
        ),
        _reference_metric("ROUGE_L", "ROUGE-L"),
        _reference_metric(
            "CIDEr",
            "CIDEr",
            meaning="agreement with the references; rare phrases count more",
        ),
        _reference_metric(
            "SPICE",
            "SPICE",
            meaning="objects, attributes and relations shared with references",
            only_english=True,
        ),
    )
    options = {
        "cider_df": option(
            Optional[str], None, "how many images of a corpus have an n-gram, for CIDEr's weights"
        ),
        "spice": option(bool, False, "also compute SPICE, which is slow"),
        "spice_timeout": option(float, 3600.0, "the time limit of SPICE, in seconds", gt=0),
        "spice_heap": option(
            str,
            "8G",
            "the memory limit of SPICE's Java, such as 4G or 800m",
            pattern=r"^[1-9][0-9]*[kKmMgG]$",
        ),
    }

    def prepare(self) -> None:
        self.corpus = next(map(read_corpus, self.files("cider_df")), None)
        if not self.config.spice:
            self.metrics = self.metrics[:-1]

    def unavailable(self) -> dict[str, str]:
        if skipped := self.skipped():  # the metrics that run Java
            return skipped
        try:
            java = java_version()
        except JavaError as error:
            names = ("METEOR", "SPICE") if self.config.spice else ("METEOR",)
            return dict.fromkeys(names, str(error))
        problem = spice_problem(java) if self.config.spice else None
        return {"SPICE": problem} if problem else {}

    def evaluate(self, captions: CaptionSet) -> Scores:
        texts, groups, tokenizer = captions.tokenized
        scores = Scores(settings={"tokenizer": tokenizer}, skipped=self.unavailable())
        if self.corpus:
            scores.settings["cider_df"] = f"{self.config.cider_df} ({self.corpus.images} images)"
        scorers = {
            "Bleu": bleu_scores,
            "METEOR": meteor_scores,
            "ROUGE": rouge_scores,
            "CIDEr": partial(cider_scores, corpus=self.corpus),
            "SPICE": partial(
                spice_scores, seconds=self.config.spice_timeout, heap=self.config.spice_heap
            ),
        }
        for start, scorer in scorers.items():
            names = [name for name in self.metric_names if name.startswith(start)]
            if names and names[0] not in scores.skipped:
                scores.update(Scores.attempt(names, scorer, texts, groups))
        return scores


def bleu_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return BLEU 1-4 of the whole set and of each caption (Papineni et al. 2002).

    captions: N tokenised captions; references: N lists of tokenised captions. The brevity penalty
    uses the reference length that is closest to the caption's length; in a tie, the shorter one.
    """
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=4)
    for caption, group in zip(captions, references):
        scorer += (caption, group)
    _, each = scorer.compute_score(option="closest", verbose=0)
    rows = []  # one per caption; `bleu_of_sums` takes sums of such rows
    for counts in scorer.ctest:
        words = counts["testlen"]
        closest = min(counts["reflen"], key=lambda length: (abs(length - words), length))
        rows.append([*counts["correct"], *counts["guess"], words, closest])
    names = [f"Bleu_{n}" for n in (1, 2, 3, 4)]
    return Scores(dict(zip(names, estimates(np.array(rows), bleu_of_sums))), dict(zip(names, each)))


def bleu_of_sums(sums: np.ndarray) -> np.ndarray:
    """Return BLEU 1-4 (R, 4) of R rows of summed counts.

    sums: (R, 10), in this order:

    - clipped n-gram matches for n = 1 to 4 (4 columns)
    - n-grams in the captions for n = 1 to 4 (4)
    - words in the captions (1)
    - words in the references that are closest to the captions in length (1)
    """
    tiny, small = 1e-15, 1e-9  # which pycocoevalcap adds to numerators and denominators
    precisions = np.cumprod((sums[:, :4] + tiny) / (sums[:, 4:8] + small), axis=1)
    brevity = np.minimum((sums[:, 8:9] + tiny) / (sums[:, 9:] + small), 1)  # (R, 1)
    return precisions ** (1 / np.arange(1, 5)) * np.exp(1 - 1 / brevity)


def rouge_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Return ROUGE-L. For the parameters, see `bleu_scores`."""
    from pycocoevalcap.rouge.rouge import Rouge

    # pycocoevalcap splits "" into one empty word, which would match an empty reference. Therefore
    # an empty caption gets 0 here.
    rouge, pairs = Rouge(), zip(captions, references)
    each = [float(rouge.calc_score([text], group)) if text else 0.0 for text, group in pairs]
    return Scores.from_means({"ROUGE_L": each})


def cider_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]], corpus: Optional[Corpus] = None
) -> Scores:
    """Return CIDEr. For the parameters, see `bleu_scores`.

    corpus: whose n-grams' frequencies determine their weights; by default the references.
    """
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    class CorpusScorer(CiderScorer):
        # Otherwise `compute_cider` sets it to the logarithm of the number of scored images.
        ref_len = property(lambda self: np.log(corpus.images), lambda self, value: None)

    scorer = CorpusScorer() if corpus else CiderScorer()
    for caption, group in zip(captions, references):
        scorer += (caption, group)
    if corpus:
        scorer.document_frequency = corpus.frequencies
    else:
        scorer.compute_doc_freq()
    return Scores.from_means({"CIDEr": [float(score) for score in scorer.compute_cider()]})


def spice_problem(java: int) -> Optional[str]:
    """Return why SPICE cannot run, in one line; None if it can. java: Java's major version."""
    if java > LAST_JAVA_OF_SPICE:
        return f"it needs Java 8 to {LAST_JAVA_OF_SPICE}, this is Java {java}"
    models = Path(jar("spice/lib/stanford-corenlp-3.6.0-models.jar"))
    command = "python -m pycocoevalcap.spice.get_stanford_models"
    return None if models.is_file() else f"its models are missing (fetch them once: {command})"


def spice_scores(
    captions: Sequence[str], references: Sequence[Sequence[str]], seconds: float, heap: str
) -> Scores:
    """Return SPICE's F score. Raises JavaError.

    - captions, references: see `bleu_scores`
    - seconds: the time limit
    - heap: the memory limit, such as "8G"

    SPICE can cache its parses, but this is not used: the cache is in the folder of the installed
    package, and it fails on new systems.
    """
    items = [
        {"image_id": index, "test": caption, "refs": list(group)}
        for index, (caption, group) in enumerate(zip(captions, references))
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "captions.json"), Path(folder, "scores.json")
        source.write_text(json.dumps(items), encoding="ascii")
        program = [f"-Xmx{heap}", "-jar", jar("spice/spice-1.0.jar")]
        run_java(*program, str(source), "-out", str(result), "-silent", seconds=seconds)
        scored = json.loads(result.read_text(encoding="utf-8"))
    by_index = {item["image_id"]: float(item["scores"]["All"]["f"]) for item in scored}
    return Scores.from_means({"SPICE": [by_index[index] for index in range(len(captions))]})
