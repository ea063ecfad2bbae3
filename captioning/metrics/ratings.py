"""Reads human ratings of captions from files in their published formats.

- Flickr8k-Expert and Flickr8k-CF (Hodosh et al. 2013): ExpertAnnotations.txt and
  CrowdFlowerAnnotations.txt. Flickr8k.token.txt in the same folder contains the captions. As in
  published results, captions that were written for the rated image are left out, and the ratings of
  a caption by several experts are not averaged.
- Composite (Aditya et al. 2015): files with ";" between columns. Column 28 contains the URL of an
  image. The next columns contain three or four captions, then one rating for each caption. As in
  published results, only the first three captions are used.
- capevalkit's lines {id, image, caption, references, score}
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Optional

from captioning.data.caption_files import ids_by_name, read_references
from captioning.files.reading import parse_json_lines, read_text
from captioning.runtime.errors import UserError

RATING = "rating"  # the key in `Rated.ratings` for a file with one kind of rating
TOKENS = "Flickr8k.token.txt"  # the file of captions
_URL = 27  # index of Composite's column with the URL of the image; captions and ratings follow
_CAPTIONS = 3  # the number of captions per image that are used from Composite


class Rated(NamedTuple):
    """A caption with its ratings.

    image: the name of the image file, or an image id. ratings: {name of the rating: value}. system:
    the captioner or run that made the caption; "" if unknown. metrics: {metric: value} that the
    reader has computed already, see `scene_ratings`.
    """

    image: str
    caption: str
    references: Sequence[str]
    ratings: Mapping[str, float]
    system: str = ""
    metrics: Mapping[str, Optional[float]] = {}


def read_ratings(path: Path, references: Optional[Path] = None) -> list[Rated]:
    """Return the rated captions of a file, in one of this module's formats.

    references: a file of human captions, needed if the rated file has no references; see
    `read_references`. Raises UserError.
    """
    human = _references_by_file_name(references) if references else {}
    try:
        if path.suffix == ".txt":
            rated = list(_read_flickr8k(path))
        elif path.suffix == ".jsonl":
            rated = list(_read_lines(path, human))
        else:
            rated = list(_read_composite(path, human))
    # RuntimeError: if `next` raises StopIteration in a generator, Python turns it into this error.
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{path}: holds no ratings as they were published ({error!r}): expected a file of "
            "Flickr8k, Composite, or lines {id, image, caption, references, score}"
        ) from None
    if not rated:
        raise UserError(f"{path}: holds no rating of a caption of another image")
    return rated


def _references_by_file_name(path: Path) -> dict[str, list[str]]:
    """Return {name of an image file: references of the image}. path: a file of references."""
    references = read_references(path)
    named = {PurePosixPath(str(i)).name: i for i in references}
    named.update({PurePosixPath(name).name: i for name, i in ids_by_name(path).items()})
    return {name: references[i] for name, i in named.items() if i in references}


def _references_of(human: Mapping[str, Sequence[str]], image: str, where: str) -> Sequence[str]:
    """Return an image's references. where: the place in the file, for the UserError."""
    if image not in human:
        raise UserError(
            f"{where}: image {image!r} has no references: give --references with all images"
        )
    return human[image]


def _read_flickr8k(path: Path) -> Iterator[Rated]:
    tokens = path.with_name(TOKENS)
    captions = dict(line.split("\t") for line in read_text(tokens).splitlines() if line.strip())
    human = {}
    for caption_id, text in captions.items():
        human.setdefault(caption_id.rpartition("#")[0], []).append(text)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        image, caption_id, *scores = line.split("\t")
        where = f"{path}: line {number}"
        if caption_id not in captions:
            raise UserError(f"{where}: {tokens} has no caption {caption_id!r}: give its own file")
        if image != caption_id.rpartition("#")[0]:
            references = _references_of(human, image, where)
            share, yes, no = map(float, scores)
            # Flickr8k-CF's columns are the share of "yes" and the numbers of "yes" and "no".
            # Flickr8k-Expert's are three scores from 1 to 4, which never satisfy this equation.
            is_crowd = abs(share * (yes + no) - yes) < 0.01 * (yes + no)
            for score in [share] if is_crowd else [share, yes, no]:
                yield Rated(image, captions[caption_id], references, {RATING: score})


def _read_lines(path: Path, human: Mapping[str, Sequence[str]]) -> Iterator[Rated]:
    for number, row in parse_json_lines(read_text(path).split("\n"), path):
        where = f"{path}: line {number}"
        image, caption = str(row["image"]), row["caption"]
        if not isinstance(caption, str):
            raise TypeError(f"line {number} has no caption text")
        references = row.get("references") or _references_of(
            human, PurePosixPath(image).name, where
        )
        rating = row["score"] if "score" in row else row["human_score"]
        yield Rated(image, caption, references, {RATING: float(rating)})


def _read_composite(path: Path, human: Mapping[str, Sequence[str]]) -> Iterator[Rated]:
    rows = csv.reader(read_text(path).splitlines()[1:], delimiter=";")
    for number, cells in enumerate(rows, 2):
        if len(cells) > _URL and cells[_URL]:
            image = PurePosixPath(cells[_URL]).name
            references = _references_of(human, image, f"{path}: line {number}")
            found = [cell for cell in cells[_URL + 1 :] if cell]
            first_rating = next(i for i, cell in enumerate(found) if re.fullmatch(r"[\d.]+", cell))
            for caption, rating in list(zip(found, found[first_rating:]))[:_CAPTIONS]:
                # Composite's first caption is one of the references: leave this reference out.
                others = [text for text in references if _normalised(text) != _normalised(caption)]
                yield Rated(image, caption, others, {RATING: float(rating)})


def _normalised(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()
