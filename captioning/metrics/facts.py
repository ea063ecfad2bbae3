"""Counts the facts that captions state about generated scenes, and checks whether they are true.

true_facts   true facts per caption
wrong_facts  wrong facts among all stated facts, per cent
scene_R@k    captions whose own scene ranks among the first k, per cent. For each caption, scenes
             are ranked by how many of the caption's facts are true for the scene; ties count
             against the own scene
"""

from pathlib import Path
from typing import Annotated, Optional

from pydantic import Field

from captioning.metrics.evaluator import CaptionSet, Evaluator, Scores, entries_of
from captioning.metrics.options import FILE, Options
from captioning.scenes.facts import Statement, max_true_facts, read_caption, true_facts
from captioning.scenes.make import read_scenes
from captioning.scenes.world import Scene

RANKS = (1, 5)


class FactsOptions(Options):
    facts_file: Annotated[Optional[str], "scoring", FILE] = Field(
        None, description="the file that describes each image's scene"
    )


class Facts(Evaluator):
    name = "facts"
    Options = FactsOptions
    required = ("facts_file",)

    def prepare(self) -> None:
        self.scenes = read_scenes(Path(self.options.facts_file))

    def evaluate(self, captions: CaptionSet) -> Scores:
        scenes = [*entries_of(captions.ids, self.scenes, self.options.facts_file).values()]
        statements = list(map(read_caption, captions.predictions.values()))
        counts = [stated_and_true(s, scene) for s, scene in zip(statements, scenes)]
        stated, true = (list(of_all) for of_all in zip(*counts))
        wrong = [total - right for total, right in zip(stated, true)]
        distinct = list({id(scene): scene for scene in scenes}.values())
        ranks = [_rank(*each, distinct) for each in zip(statements, scenes, true)]
        hits = {f"scene_R@{k}": [100.0 * (rank <= k) for rank in ranks] for k in RANKS}
        scores = Scores.of_means({"true_facts": true, **hits})
        scores.update(Scores.of_shares({"wrong_facts": (wrong, stated)}))
        return scores


def stated_and_true(statement: Statement, scene: Scene) -> tuple[int, int]:
    """Return the number of stated facts, and the number of stated facts that are true."""
    return len(statement.facts()), len(true_facts(statement, scene))


def _rank(statement: Statement, own: Scene, true: int, scenes: list[Scene]) -> int:
    """Return the rank of a caption's own scene among all scenes; 1 is best.

    true: the number of the caption's facts that are true for the own scene.
    """
    facts = statement.facts()
    others = (scene for scene in scenes if scene is not own)
    return 1 + sum(
        max_true_facts(facts, scene) >= true and len(true_facts(statement, scene)) >= true
        for scene in others
    )
