"""Computes CHAIR, the rates of hallucinated objects (Rohrbach et al. 2018, section 2.1).

An object is hallucinated if a caption names it, but the image does not contain it.

CHAIRs         captions with at least one hallucinated object, per cent
CHAIRi         hallucinated mentions among all mentions of objects, per cent
object_recall  objects in the images that the captions name, per cent
"""

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Optional, Union

from captioning.data.annotations import ImageId
from captioning.data.caption_files import of_images
from captioning.files.cache import cache_folder, download_once
from captioning.files.reading import read_json
from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.metrics.objects_in_text import ObjectReader, read_synonyms, singulars
from captioning.runtime.errors import UserError

# The synonyms by CHAIR's authors. The file is downloaded and not distributed with this project,
# because the licences differ.
SYNONYMS_URL = (
    "https://raw.githubusercontent.com/LisaAnne/Hallucination/"
    "6e4d33c4bedf6dfcd24c61bf527f40714717be47/data/synonyms.txt"
)
SYNONYMS_SHA256 = "b685537b36fe21b791c87151b96a991ceb582edff19f3da204dcc7a7905502f2"

_EXPECTED = (
    "expected COCO's instances ({images, annotations: [{image_id, category_id}], categories: [{id, "
    "name}]}) or {image id: [object, ...]}"
)


_Metric = partial(Metric, unit="%", needs_references=True, only_english=True)


class Chair(Evaluator):
    """Computes CHAIR for the images in `objects_file`; captions of other images get None.

    An object is in the image if `objects_file` lists it or a reference names it. The detail
    `hallucinated` lists the hallucinated mentions of each caption as [word, object].
    """

    metrics = (
        _Metric(
            "CHAIRs",
            "CHAIRs",
            direction="lower",
            meaning="captions that name an object which is not there",
        ),
        _Metric(
            "CHAIRi",
            "CHAIRi",
            direction="lower",
            meaning="share of the named objects that are not there",
        ),
        _Metric(
            "object_recall",
            "Obj. Recall",
            meaning="share of the images' objects that are named",
            report_title="Objects named",
        ),
    )
    options = {
        "objects_file": option(
            Union[str, list[str], None],
            None,
            "the objects in each image: COCO's instances or {image id: [object]}",
        ),
        "synonyms": option(
            Optional[str],
            None,
            "chair's file of objects and their synonyms (default: the published one)",
        ),
    }
    required = ("objects_file",)

    def prepare(self) -> None:
        path = next(iter(self.files("synonyms")), None)
        if path is None:
            cached = cache_folder(self.settings.cache_dir) / "chair_synonyms.txt"
            path = download_once(SYNONYMS_URL, cached, SYNONYMS_SHA256)
        self.synonyms = read_synonyms(path)
        self.paths = self.files("objects_file")
        self.objects = read_objects(self.paths, self.synonyms)
        if self.settings.images:
            self._objects_of(self.settings.images)

    def check_requirements(self) -> None:
        singulars()

    def _objects_of(self, ids: Iterable[ImageId]) -> dict[ImageId, set[str]]:
        """Return {image id: objects} for the images that are in `objects_file`.

        Raises UserError if `objects_file` has none of the images.
        """
        # `of_images` returns () for an image that is not in the files. An image that is listed
        # without objects has an empty set, and is kept.
        known = {i: each for i, each in of_images(ids, self.objects).items() if each != ()}
        if not known:
            raise UserError(
                f"objects_file: {', '.join(map(str, self.paths))} and the captions have no image "
                f"id in common: the first ones are {next(iter(self.objects))!r} and "
                f"{next(iter(ids))!r}"
            )
        return known

    def evaluate(self, captions: CaptionSet) -> Scores:
        reader, known = ObjectReader(self.synonyms, singulars()), self._objects_of(captions.ids)
        rows = []  # per caption: hallucinated mentions, mentions, named objects, present objects
        for image_id, objects in known.items():
            in_references = map(reader.mentions, captions.references[image_id])
            objects = objects.union(each.object for group in in_references for each in group)
            mentions = reader.mentions(captions.predictions[image_id])
            absent = [mention for mention in mentions if mention.object not in objects]
            named = objects.intersection(mention.object for mention in mentions)
            rows.append((absent, len(mentions), len(named), len(objects)))
        hallucinated, mentions, named, present = zip(*rows)
        scores = Scores.from_means(
            {"CHAIRs": [100.0 * bool(each) for each in hallucinated]},
            details={"hallucinated": hallucinated},
            settings={
                "chair_synonyms": self.config.synonyms or "published",
                "chair_unknown_images": len(captions.ids) - len(known),
            },
        )
        shares = {"CHAIRi": (list(map(len, hallucinated)), mentions)}
        scores.update(Scores.from_ratios({**shares, "object_recall": (named, present)}))
        # One value per caption; None if its image is not in `objects_file`.
        for columns in (scores.per_caption, scores.details):
            for name, values in columns.items():
                columns[name] = list(map(dict(zip(known, values)).get, captions.ids))
        return scores


def read_objects(paths: Iterable[Path], names: Mapping[str, str]) -> dict[ImageId, set[str]]:
    """Return {image id: names of its objects}; an image listed without objects has an empty set.

    names: {synonym: name of the object}, from `read_synonyms`. An image in several files has the
    objects from all files. Raises UserError for a missing or wrong file, and for an object that is
    not in `names`.
    """
    objects = {}
    for path in paths:
        listed = read_json(path)
        try:
            by_image = _of_instances(listed) if "annotations" in listed else listed
            for image_id, words in by_image.items():
                if not isinstance(words, list):
                    raise TypeError
                objects.setdefault(image_id, set()).update(names[word] for word in words)
        except (KeyError, TypeError, AttributeError) as error:
            unknown = f" whose objects the synonyms name, not {error}" if error.args else ""
            raise UserError(f"{path}: {_EXPECTED}{unknown}") from None
    return objects


def _of_instances(coco: dict) -> dict[ImageId, list[str]]:
    """Return {image id: names of its objects} of COCO's instances."""
    names = {category["id"]: category["name"] for category in coco["categories"]}
    objects = {image["id"]: [] for image in coco["images"]}
    for each in coco["annotations"]:
        objects.setdefault(each["image_id"], []).append(names[each["category_id"]])
    return objects
