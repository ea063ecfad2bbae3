"""Rates the captions of generated scenes by their facts and by a checklist, for `correlation`.

For each property and relation, the checklist asks whether anything in the image has it. The judge
is simulated: it sees only the caption, and makes no mistakes. The questions do not ask which thing
has a property. A caption that swaps the colours of a red circle and a blue square therefore still
answers all questions right.
"""

from itertools import chain, permutations
from pathlib import Path

from captioning.data.caption_files import read_predictions, read_references
from captioning.metrics.checklist import NOT_SAID, YES_NO, Question, scores_of
from captioning.metrics.evaluator import entries_of
from captioning.metrics.facts import stated_and_true
from captioning.metrics.ratings import Rated
from captioning.runtime.errors import UserError
from captioning.scenes.facts import ADJECTIVES, NOUNS, PLACES, SCENE_WORDS, read_caption
from captioning.scenes.make import read_scenes
from captioning.scenes.world import RELATIONS, Scene

CAPTIONS = "result/test.json"  # the file in a run's folder with captions of the test split
# The properties and relations that the checklist asks about, one per question.
ASKED = sorted(
    {*NOUNS.values(), *chain(*ADJECTIVES.values()), *PLACES.values(), *SCENE_WORDS.values()}
    | RELATIONS.keys()
)


def read_runs(folder: Path, facts: Path, references: Path) -> list[Rated]:
    """Return the captions of the test split of each run in a folder. Raises UserError.

    The ratings are the number of true facts, the share of the stated facts that are true, and the
    number of true minus wrong facts. Captions that state nothing are left out. facts: a
    scenes.json, see `read_scenes`. references: a file, see `read_references`.
    """
    scenes, human, rated = read_scenes(facts), read_references(references), []
    for path in sorted(folder.glob(f"*/{CAPTIONS}")):
        captions = read_predictions(path)
        known, texts = entries_of(captions, scenes, facts), entries_of(captions, human, references)
        for image_id, caption in captions.items():
            statement = read_caption(caption)
            stated, true = stated_and_true(statement, known[image_id])
            said = {fact.what for fact in statement.facts()}
            answers = [YES_NO[0] if what in said else NOT_SAID for what in ASKED]
            checked = scores_of([answers], [checklist_of(known[image_id])]).per_image
            metrics = {name: value for name, [value] in checked.items()}  # of this one caption
            if stated:
                ratings = {"true": true, "right": true / stated, "true - wrong": 2 * true - stated}
                system = path.parts[-3]
                rated.append(
                    Rated(str(image_id), caption, texts[image_id], ratings, system, metrics)
                )
    if not rated:
        raise UserError(f"{folder}: no run in it has {CAPTIONS} with facts")
    return rated


def checklist_of(scene: Scene) -> list[Question]:
    """Return the questions about a scene, in the order of ASKED."""
    pairs = list(permutations(scene.things, 2))
    true = scene.facts().union(*(thing.facts() for thing in scene.things))
    true |= {name for name, holds in RELATIONS.items() if any(holds(*pair) for pair in pairs)}
    return [Question(f"Is anything {what}?", YES_NO[what not in true]) for what in ASKED]
