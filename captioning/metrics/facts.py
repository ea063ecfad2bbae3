"""Counts the facts that captions state about generated scenes, and checks whether they are true.

true_facts   true facts per caption
wrong_facts  wrong facts among all stated facts, per cent
scene_R@k    captions whose own scene ranks among the first k, per cent. For each caption, the
             scenes of all captioned images are ranked by how many of the caption's facts are true
             for them; ties count against the own scene
"""

from typing import Optional

from captioning.data.caption_files import entries_of
from captioning.metrics.base import CaptionSet, Evaluator, Metric, Scores, option
from captioning.scenes.facts import Statement, max_true_facts, read_caption, true_facts
from captioning.scenes.world import Scene, read_scenes

RANKS = (1, 5)


class Facts(Evaluator):
    metrics = (
        Metric(
            "true_facts",
            "True Facts",
            decimals=2,
            meaning="stated facts that are true for the image",
            unit="a caption",
            report_title="True facts",
        ),
        Metric(
            "wrong_facts",
            "Wrong %",
            direction="lower",
            meaning="share of the stated facts that are wrong",
            unit="%",
            report_title="Wrong facts",
        ),
        Metric(
            "scene_R@1",
            "Scene R@1",
            meaning="self-retrieval: captions that fit their own image best",
            unit="%",
            report_title="R@1",
        ),
        Metric(
            "scene_R@5",
            "Scene R@5",
            meaning="self-retrieval: captions whose own image is among the best five",
            unit="%",
            report_title="R@5",
        ),
    )
    options = {
        "facts_file": option(Optional[str], None, "the file that describes each image's scene")
    }
    required = ("facts_file",)

    def prepare(self) -> None:
        [path] = self.files("facts_file")
        self.scenes = read_scenes(path)

    def evaluate(self, captions: CaptionSet) -> Scores:
        scenes = [*entries_of(captions.ids, self.scenes, self.config.facts_file).values()]
        # Ids such as a.jpg#0 and a.jpg#1 share a scene, which is ranked once.
        distinct = list({id(scene): scene for scene in scenes}.values())
        rows = []
        for caption, scene in zip(captions.texts, scenes):
            statement = read_caption(caption)
            num_stated, num_true = len(statement.facts()), len(true_facts(statement, scene))
            rank = _rank_of_own_scene(statement, scene, num_true, distinct)
            rows.append((num_stated, num_true, num_stated - num_true, rank))
        stated, correct, wrong, ranks = zip(*rows)
        hits = {f"scene_R@{k}": [100.0 * (rank <= k) for rank in ranks] for k in RANKS}
        scores = Scores.from_means({"true_facts": correct, **hits})
        scores.update(Scores.from_ratios({"wrong_facts": (wrong, stated)}))
        return scores


def _rank_of_own_scene(
    statement: Statement, described: Scene, num_true: int, scenes: list[Scene]
) -> int:
    """Return the rank of a caption's own scene among `scenes`; 1 is best.

    described: the own scene. num_true: the number of the caption's facts that are true for it.
    """
    facts = statement.facts()
    # `max_true_facts` is a cheap upper bound, which rules out most scenes.
    return 1 + sum(
        scene is not described
        and max_true_facts(facts, scene) >= num_true
        and len(true_facts(statement, scene)) >= num_true
        for scene in scenes
    )
