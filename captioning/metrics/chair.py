"""CHAIR: objects that captions name and images do not have (Rohrbach et al. 2018, section 2.1).

CHAIRs         captions that name at least one such object, per cent
CHAIRi         mentions of such objects among all mentions of objects, per cent
object_recall  objects of the images that their captions name, per cent
"""

from captioning.data.caption_files import by_id
from captioning.metrics.bootstrap import mean, ratio
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.metrics.object_files import find_synonyms, read_objects
from captioning.metrics.objects_in_text import ObjectReader, read_synonyms
from captioning.metrics.singular import SINGULARS
from captioning.runtime.errors import UserError


class Chair(Evaluator):
    """Of the images that `objects` knows; their references add what they name to these objects.

    Each caption's mentions of what is not there are told beside its values, as [word, object].
    """

    names = reference_metrics = ("CHAIRs", "CHAIRi", "object_recall")

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.words = read_synonyms(find_synonyms(settings.synonyms, settings.cache_dir))
        self.known = read_objects(settings.objects, self.words)
        if settings.images:
            self._known_of(settings.images)

    def unavailable(self) -> dict[str, str]:
        try:
            SINGULARS[self.settings.singular]()
        except UserError as error:
            return dict.fromkeys(self.names, str(error))
        return {}

    def _known_of(self, ids):
        """The objects of the images that are known. Raises UserError where none is."""
        # Not by truth: of an image without objects an empty set is known, and no empty tuple.
        known = {i: objects for i, objects in by_id(ids, self.known).items() if objects != ()}
        if not known:
            files = ", ".join(map(str, self.settings.objects))
            raise UserError(
                f"objects: {files} and the captions have no image id in common: the first ones are "
                f"{next(iter(self.known))!r} and {next(iter(ids))!r}"
            )
        return known

    def evaluate(self, captions: CaptionSet) -> Result:
        singular = SINGULARS[self.settings.singular]()
        reader = ObjectReader(self.words, singular.of)
        known = self._known_of(captions.ids)
        named, wrong, right, there = [], [], [], []
        for image_id, objects in known.items():
            references = captions.references[image_id]
            objects = objects.union(m.object for r in references for m in reader.mentions(r))
            mentions = reader.mentions(captions.predictions[image_id])
            named.append(len(mentions))
            wrong.append([mention for mention in mentions if mention.object not in objects])
            right.append(len(objects.intersection(mention.object for mention in mentions)))
            there.append(len(objects))
        amiss = [len(mentions) for mentions in wrong]
        guilty = [100.0 * bool(count) for count in amiss]
        shares = {"CHAIRi": _shares(amiss, named), "object_recall": _shares(right, there)}

        def of_all(values):
            found = dict(zip(known, values))
            return [found.get(image_id) for image_id in captions.ids]

        settings = {
            "chair_singular": singular.what,
            "chair_synonyms": str(self.settings.synonyms or "published"),
            "chair_unknown_images": len(captions.ids) - len(known),
        }
        return Result(
            metrics={
                "CHAIRs": mean(guilty),
                "CHAIRi": ratio(amiss, named, 100),
                "object_recall": ratio(right, there, 100),
            },
            per_image={n: of_all(v) for n, v in {"CHAIRs": guilty, **shares}.items()},
            details={"hallucinated": of_all(wrong)},
            settings=settings,
        )


def _shares(parts, wholes):
    """Per cent, None of nothing."""
    return [100 * part / whole if whole else None for part, whole in zip(parts, wholes)]
