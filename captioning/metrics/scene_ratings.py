"""Rates the captions of generated scenes by their facts and by a checklist, for `correlation`.

For each property and relation, the checklist asks whether anything in the image has it. The judge
is simulated: it sees only the caption, and makes no mistakes. The questions do not ask which thing
has a property. A caption that swaps the colours of a red circle and a blue square therefore still
answers all questions right.
"""

from itertools import chain, permutations
from pathlib import Path
from typing import Optional

from captioning.data.caption_files import read_predictions, read_references
from captioning.metrics.checklist import NO, NOT_SAID, YES, Question, checklist_scores
from captioning.metrics.evaluator import entries_of
from captioning.metrics.facts import count_facts
from captioning.metrics.ratings import Rated
from captioning.runtime.errors import UserError
from captioning.scenes.facts import ADJECTIVES, NOUNS, PLACES, SCENE_WORDS, Statement, read_caption
from captioning.scenes.make import read_scenes
from captioning.scenes.world import RELATIONS, Scene, true_relations

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
        scene_of = entries_of(captions, scenes, facts)
        references_of = entries_of(captions, human, references)
        for image_id, caption in captions.items():
            statement, scene = read_caption(caption), scene_of[image_id]
            stated, true = count_facts(statement, scene)
            if not stated:
                continue
            rated.append(
                Rated(
                    str(image_id),
                    caption,
                    references_of[image_id],
                    {"true": true, "right": true / stated, "true - wrong": 2 * true - stated},
                    system=path.parts[-3],
                    metrics=_simulated_checklist(statement, scene),
                )
            )
    if not rated:
        raise UserError(f"{folder}: no run in it has {CAPTIONS} with facts")
    return rated


def _simulated_checklist(statement: Statement, scene: Scene) -> dict[str, Optional[float]]:
    """Return {metric: value of the caption} of the evaluator `checklist` with a simulated judge."""
    said = {fact.what for fact in statement.facts()}
    answers = [YES if what in said else NOT_SAID for what in ASKED]
    scores = checklist_scores([answers], [checklist_of(scene)])
    return {name: values[0] for name, values in scores.per_caption.items()}


def checklist_of(scene: Scene) -> list[Question]:
    """Return the questions about a scene, in the order of ASKED."""
    true = scene.facts() | scene.facts_of_things()
    for a, b in permutations(scene.things, 2):
        true = true.union(true_relations(a, b))
    return [Question(f"Is anything {what}?", YES if what in true else NO) for what in ASKED]
