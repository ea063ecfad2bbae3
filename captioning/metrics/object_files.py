"""What is in each image: COCO's instances files, or a mapping; and where the synonyms come from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from captioning.data.annotations import ImageId
from captioning.data.sources import fetched
from captioning.files.cache import cache_folder
from captioning.files.reading import read_json
from captioning.runtime.errors import UserError

# A file of CHAIR's authors, whose licence is not this project's: fetched, never shipped.
SYNONYMS_URL = (
    "https://raw.githubusercontent.com/LisaAnne/Hallucination/"
    "6e4d33c4bedf6dfcd24c61bf527f40714717be47/data/synonyms.txt"
)
SYNONYMS_SHA256 = "b685537b36fe21b791c87151b96a991ceb582edff19f3da204dcc7a7905502f2"

_EXPECTED = (
    "expected COCO's instances ({images, annotations: [{image_id, category_id}], categories: [{id, "
    "name}]}) or {image id: [object, ...]}"
)


def find_synonyms(path: Optional[Path], cache_dir: Optional[Path]) -> Path:
    """Return the path that is given, or else that of the published file, fetched if need be."""
    if path is not None:
        return path
    kept = cache_folder(cache_dir) / "chair_synonyms.txt"
    return fetched(SYNONYMS_URL, kept, SYNONYMS_SHA256)


def read_objects(paths: Sequence[Path], names: Mapping[str, str]) -> dict[ImageId, set[str]]:
    """Return {image id: names of the objects in it}, none for an image that is listed without.

    names: {word: name of the object}, see `read_synonyms`. Several files add up. Raises UserError
    for a file that is missing or something else, and for an object without a name.
    """
    found: dict[ImageId, set[str]] = {}
    for path in paths:
        for image_id, objects in _objects(path).items():
            for word in objects:
                if word not in names:
                    raise UserError(
                        f"{path}: image {image_id!r} has the object {word!r}, which the synonyms "
                        "do not name: give synonyms of these objects"
                    )
            found.setdefault(image_id, set()).update(names[word] for word in objects)
    return found


def _objects(path: Path) -> dict[ImageId, set[str]]:
    # Outlines are most of COCO's files, and of no use here.
    document = read_json(path, without={"segmentation", "bbox"})
    if isinstance(document, dict) and isinstance(document.get("annotations"), list):
        try:
            return _of_instances(document)
        except (KeyError, TypeError, AttributeError):
            raise UserError(f"{path}: not a file of instances: {_EXPECTED}") from None
    if not isinstance(document, dict) or not document:
        raise UserError(f"{path}: says of no image what is in it: {_EXPECTED}")
    for image_id, objects in document.items():
        if not isinstance(objects, list) or not all(isinstance(word, str) for word in objects):
            raise UserError(f"{path}: no list of objects under {image_id!r}: {_EXPECTED}")
    return {image_id: set(objects) for image_id, objects in document.items()}


def _of_instances(document: dict[str, Any]) -> dict[ImageId, set[str]]:
    names = {category["id"]: category["name"] for category in document["categories"]}
    objects: dict[ImageId, set[str]] = {image["id"]: set() for image in document["images"]}
    for annotation in document["annotations"]:
        objects.setdefault(annotation["image_id"], set()).add(names[annotation["category_id"]])
    return objects
