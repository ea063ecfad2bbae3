"""Computes CIDEr-D (Vedantam et al. 2015, arXiv 1411.5726) as a reward for sampled captions.

The idf weights of n-grams are computed from the training captions. The end of a caption counts as a
word. The values equal those of pycocoevalcap, whose scorer takes several times as long, because it
computes the vectors of an image's references anew for each sampled caption.
"""

import math
from typing import NamedTuple

import numpy as np

from captioning.metrics.cider_df import Corpus, count_ngrams
from captioning.metrics.tokenizer import imitated_tokens, tokenize
from captioning.rewards.interface import Reward, TrainingImages
from captioning.runtime.distributed import broadcast_from_main, is_main

ORDERS = 4
SIGMA = 6.0  # the standard deviation of the Gaussian length penalty, in words
END = " END"  # differs from all tokens, which are lower-case


class CiderD(Reward):
    """CIDEr-D: 10 * the clipped cosine of tf-idf vectors * a Gaussian penalty of unequal lengths.

    The value is averaged over n = 1 to 4 and over references. The document frequency of an n-gram
    is the number of training images with a caption that contains the n-gram.

    END is appended to references and to captions with an end token; without END, training leads to
    captions that end in "with a". Apart from END, the value equals the score of pycocoevalcap's
    Cider with the same document frequencies.

    Training captions are tokenised as for the metrics, in Java if possible. Sampled captions are
    tokenised by the imitation in Python, because Java would have to be started at each step.
    """

    title = "CIDEr-D"

    def prepare(self, images: TrainingImages) -> None:
        self.language = getattr(self.config, "language", "en")
        tokens = tokenize(images.captions, self.language)[0] if is_main() else None
        tokens = broadcast_from_main(tokens)
        self.references = {i: [text + END for text in group] for i, group in tokens.items()}
        self.corpus = count_ngrams(self.references.values())

    def __call__(self, image_ids, captions) -> np.ndarray:
        scores = []
        for image_id, group in zip(image_ids, captions):
            refs = [_ngram_vectors(text, self.corpus) for text in self.references[image_id]]
            scores.append([])
            for caption in group:
                tokens = imitated_tokens(caption.text, self.language)
                candidate = _ngram_vectors(tokens + END * caption.ended, self.corpus)
                total = sum(_similarity(candidate, ref) for ref in refs)
                scores[-1].append(10.0 * total / len(refs))
        return np.array(scores)


class NgramVectors(NamedTuple):
    """The tf-idf vector {n-gram: weight} of each order in a caption, and the norms of the vectors.

    length: the number of bigrams, as in pycocoevalcap.
    """

    vectors: list[dict[tuple[str, ...], float]]
    norms: list[float]
    length: int


def _ngram_vectors(tokens: str, corpus: Corpus) -> NgramVectors:
    from pycocoevalcap.cider.cider_scorer import precook

    log_images, vectors = math.log(corpus.images), [{} for _ in range(ORDERS)]
    for ngram, count in precook(tokens, ORDERS).items():
        weight = log_images - math.log(corpus.frequencies.get(ngram, 1))
        vectors[len(ngram) - 1][ngram] = count * weight
    norms = [math.sqrt(sum(v * v for v in vector.values())) for vector in vectors]
    return NgramVectors(vectors, norms, max(len(tokens.split()) - 1, 0))


def _similarity(candidate: NgramVectors, reference: NgramVectors) -> float:
    """Return the similarity of a caption and a reference, from 0 to 1.

    The similarity is the mean over the orders n = 1 to 4, times the length penalty.
    """
    total = 0.0
    for vector, norm, ref, ref_norm in zip(*candidate[:2], *reference[:2]):
        if norm and ref_norm:
            products = (min(w, ref[gram]) * ref[gram] for gram, w in vector.items() if gram in ref)
            total += sum(products) / (norm * ref_norm)
    difference = candidate.length - reference.length
    return total / ORDERS * math.exp(-(difference**2) / (2 * SIGMA**2))
