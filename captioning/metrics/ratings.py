"""Reads human ratings of captions, in the files in which they were published.

- Flickr8k-Expert and Flickr8k-CF (Hodosh et al. 2013): ExpertAnnotations.txt and
  CrowdFlowerAnnotations.txt. Their captions are in Flickr8k.token.txt beside them. As in published
  results, a caption of the rated image itself is left out, and each expert's rating counts alone.
- the same in one JSON file: {id: {image_path, ground_truth, human_judgement: [{caption, rating}]}}
- Composite (Aditya et al. 2015): its files with ";", an image's URL in column 28, then three or
  four captions and as many ratings. As in published results, the first three captions count.
- a CSV file with the columns imgid, mt, refs and score
- capevalkit's lines {id, image, caption, references, score}; a score may be {rating: number}
"""

import ast
import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Optional

from captioning.data.caption_files import ids_by_name, read_references
from captioning.files.reading import parse_json_lines, read_json, read_text
from captioning.runtime.errors import UserError

RATING = "rating"  # the name of a file's only rating
TOKENS = "Flickr8k.token.txt"
_URL = 27  # the column of Composite's image; captions and ratings follow
_CAPTIONS = 3


class Rated(NamedTuple):
    """A caption with its ratings. image: a file's name. system: who wrote the caption.

    metrics: {metric: value}, computed by another program.
    """

    image: str
    caption: str
    references: Sequence[str]
    ratings: Mapping[str, float]
    system: str = ""
    metrics: Mapping[str, Optional[float]] = {}


def read_ratings(path: Path, references: Optional[Path] = None) -> list[Rated]:
    """Return the rated captions of a file, in one of this module's formats.

    references: human captions, for a file without them; see `read_references`. Raises UserError.
    """
    human = _by_name(references) if references else {}
    if path.suffix in (".json", ".jsonl"):
        rows = _of_lines(path, human) if path.suffix == ".jsonl" else _of_judgements(path)
    elif path.suffix == ".txt":
        rows = _of_flickr8k(path)
    else:
        rows = _of_table(path, human)
    try:
        rated = list(rows)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SyntaxError) as error:
        raise UserError(
            f"{path}: holds no ratings as they were published ({error!r}): expected a file of "
            "Flickr8k, Composite, or lines {id, image, caption, references, score}"
        ) from None
    rated = [row for row in rated if not any(map(math.isnan, row.ratings.values()))]
    if len(rated) < 2 or len({frozenset(row.ratings) for row in rated}) > 1:
        raise UserError(f"{path}: expected two captions or more with the same ratings")
    return rated


def _by_name(path: Path) -> dict[str, list[str]]:
    """The references of each image, by the name of its file."""
    references = read_references(path)
    named = {PurePosixPath(name).name: i for name, i in ids_by_name(path).items()}
    return {name: references[i] for name, i in named.items() if i in references}


def _human(human: Mapping[str, Sequence[str]], image: str, where: str) -> Sequence[str]:
    name = PurePosixPath(image).name
    if name not in human:
        raise UserError(
            f"{where}: image {name!r} has no references: give --references with all images"
        )
    return human[name]


def _of_flickr8k(path: Path) -> Iterator[Rated]:
    tokens = path.with_name(TOKENS)
    captions = dict(line.split("\t") for line in read_text(tokens).splitlines() if line.strip())
    human: dict[str, list[str]] = {}
    for caption_id, text in captions.items():
        human.setdefault(caption_id.rpartition("#")[0], []).append(text)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        image, caption_id, *scores = line.split("\t")
        where = f"{path}: line {number}"
        if caption_id not in captions:
            raise UserError(f"{where}: {tokens} has no caption {caption_id!r}: give its own file")
        if image != caption_id.rpartition("#")[0]:
            references = _human(human, image, where)
            share, yes, no = map(float, scores)
            # The crowd's columns; an expert's scores are 1 to 4, so they cannot fit.
            crowd = abs(share * (yes + no) - yes) < 0.01 * (yes + no)
            for score in (share,) if crowd else (share, yes, no):
                yield Rated(image, captions[caption_id], references, {RATING: score})


def _of_judgements(path: Path) -> Iterator[Rated]:
    for row in read_json(path).values():
        for each in row["human_judgement"]:
            rating = {RATING: float(each["rating"])}
            yield Rated(row["image_path"], each["caption"], row["ground_truth"], rating)


def _of_lines(path: Path, human: Mapping[str, Sequence[str]]) -> Iterator[Rated]:
    for number, row in parse_json_lines(read_text(path).split("\n"), path):
        image, score = str(row["image"]), row.get("score", row.get("human_score"))
        references = row.get("references") or _human(human, image, f"{path}: line {number}")
        ratings = score if isinstance(score, dict) else {RATING: score}
        ratings = {name: float(value) for name, value in ratings.items()}
        more: Any = (str(row.get("system", "")), row.get("metrics", {}))
        yield Rated(image, row["caption"], references, ratings, *more)


def _of_table(path: Path, human: Mapping[str, Sequence[str]]) -> Iterator[Rated]:
    text = read_text(path)
    first = text.partition("\n")[0]
    rows = csv.reader(text.splitlines(), delimiter=";" if first.count(";") > _URL else ",")
    head = next(rows)
    for number, cells in enumerate(rows, 2):
        if "mt" in head:
            row = dict(zip(head, cells))
            references = ast.literal_eval(row["refs"])
            yield Rated(row["imgid"], row["mt"], references, {RATING: float(row["score"])})
        elif len(cells) > _URL and cells[_URL]:
            references = _human(human, cells[_URL], f"{path}: line {number}")
            found = [cell for cell in cells[_URL + 1 :] if cell]
            half = next(i for i, cell in enumerate(found) if re.fullmatch(r"[\d.]+", cell))
            for caption, rating in list(zip(found, found[half:]))[:_CAPTIONS]:
                # The first caption is one of the references.
                others = [text for text in references if _same(text) != _same(caption)]
                yield Rated(cells[_URL], caption, others, {RATING: float(rating)})


def _same(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip().casefold()
