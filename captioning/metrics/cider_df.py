"""Counts in how many images of a corpus each n-gram occurs.

python -m captioning.metrics.cider_df coco_karpathy_train.json --out coco_train_df.json

CIDEr weights n-grams by these counts. With --cider_df FILE, captions of few images get the weights
of a large corpus, and scores of different sets compare.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from captioning.data.caption_files import read_references
from captioning.files.columns import normal_name
from captioning.files.reading import read_json
from captioning.files.stores import key_of
from captioning.files.writing import write_json
from captioning.metrics.tokenizer import tokenize
from captioning.runtime.errors import UserError
from captioning.runtime.program import program_parser, run_program
from captioning.runtime.progress import log_line


class Corpus(NamedTuple):
    """The number of images, and {n-gram as a tuple of words: number of images that have it}.

    An n-gram of a single image counts like an unknown one, and is left out.
    """

    images: int
    frequencies: Counter


def count_ngrams(groups: Iterable[Iterable[str]]) -> Corpus:
    """Count the n-grams, of 1 to 4 words. groups: for each image, its tokenised captions."""
    from pycocoevalcap.cider.cider_scorer import precook

    images, counts = 0, Counter()
    for group in groups:
        images += 1
        counts.update({ngram for text in group for ngram in precook(text)})
    return Corpus(images, Counter({ngram: n for ngram, n in counts.items() if n > 1}))


def read_corpus(path: Path) -> Corpus:
    """Return the corpus of a file that this program has made. Raises UserError."""
    content = read_json(path)
    try:
        counts = {tuple(words.split(" ")): int(n) for words, n in content["ngrams"].items()}
        return Corpus(int(content["images"]), Counter(counts))
    except (LookupError, TypeError, ValueError, AttributeError):
        program = "python -m captioning.metrics.cider_df"
        raise UserError(f"cider_df: {path}: no counts of n-grams: make them by {program}") from None


def _write_corpus(references: Path, path: Path, language: str) -> None:
    tokens, _ = tokenize(read_references(references), language)
    images, frequencies = count_ngrams(tokens.values())
    ngrams = {" ".join(ngram): count for ngram, count in frequencies.items()}
    write_json({"images": images, "ngrams": ngrams}, path)
    log_line(f"{path}: {len(ngrams)} n-grams of {images} images")


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = program_parser("python -m captioning.metrics.cider_df", __doc__)
    parser.add_argument("references", help="captions, in any format of --references")
    parser.add_argument("--out", type=normal_name, required=True, help="the file to write")
    parser.add_argument("--language", default="en", help="as of captioning.evaluate")
    arguments = parser.parse_args(argv)
    if key_of(arguments.references) == key_of(arguments.out):
        parser.error(f"--out is {arguments.out}, the file of captions: name another file")
    files = map(Path, (arguments.references, arguments.out))
    return run_program(lambda: _write_corpus(*files, arguments.language))


if __name__ == "__main__":
    sys.exit(main())
