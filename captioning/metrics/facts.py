"""What captions state about drawn scenes, and whether it is true of them.

true_facts   true facts a caption states
wrong_facts  wrong facts among all that are stated, per cent
scene_R@k    captions whose stated facts find their own scene among the first k of all scored ones,
             per cent; a scene of which as many of them are true counts as before it
"""

from captioning.data.caption_files import by_id
from captioning.metrics.bootstrap import mean, ratio
from captioning.metrics.evaluator import CaptionSet, Evaluator, Result, Settings
from captioning.runtime.errors import UserError
from captioning.scenes.facts import Statement, most_true, read_caption, true_facts
from captioning.scenes.make import read_scenes
from captioning.scenes.world import Scene

RANKS = (1, 5)


class Facts(Evaluator):
    """The metrics that only a world with a known truth allows."""

    names = ("true_facts", "wrong_facts", *(f"scene_R@{k}" for k in RANKS))

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.scenes = read_scenes(settings.facts_file)

    def evaluate(self, captions: CaptionSet) -> Result:
        known = by_id(captions.ids, self.scenes)
        scenes = [known[image_id] for image_id in captions.ids]
        if not all(scenes):
            unknown = next(i for i in captions.ids if not known[i])
            raise UserError(f"{self.settings.facts_file} does not say what is in image {unknown!r}")
        statements = [read_caption(captions.predictions[image_id]) for image_id in captions.ids]
        counts = [stated_and_true(s, scene) for s, scene in zip(statements, scenes)]
        stated, true = (list(of_all) for of_all in zip(*counts))
        wrong = [total - right for total, right in zip(stated, true)]
        ranks = [_rank(s, i, true[i], scenes) for i, s in enumerate(statements)]
        found = {f"scene_R@{k}": [100.0 * (rank <= k) for rank in ranks] for k in RANKS}
        return Result(
            metrics={
                "true_facts": mean(true),
                "wrong_facts": ratio(wrong, stated, 100),
                **{name: mean(values) for name, values in found.items()},
            },
            per_image={
                "true_facts": true,
                "wrong_facts": [100 * w / s if s else None for w, s in zip(wrong, stated)],
                **found,
            },
        )


def stated_and_true(statement: Statement, scene: Scene) -> tuple[int, int]:
    """How many facts are stated, and how many of them hold."""
    return len(statement.facts()), len(true_facts(statement, scene))


def _rank(statement: Statement, own: int, true: int, scenes: list[Scene]) -> int:
    """The place of scene `own`, of which `true` of the facts hold, among all; 1 is best."""
    facts = statement.facts()
    others = (scene for i, scene in enumerate(scenes) if i != own)
    return 1 + sum(
        most_true(facts, scene) >= true and len(true_facts(statement, scene)) >= true
        for scene in others
    )
