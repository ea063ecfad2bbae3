"""A checklist for scenes, and an exact judge, who knows a caption alone.

The questions are those that people write: each is about the whole image. Thus a caption that gives
a red circle and a blue square the colours of each other answers all of them right.
"""

from itertools import permutations

from captioning.scenes.facts import read_caption
from captioning.scenes.world import COUNTS, GROUNDS, RELATIONS, SHADES, SHAPES, SIZES, Scene

NOT_SAID = "not said"
_PLACES = ("left", "right", "top", "bottom", "middle")
_SHARED = {word: None for words in (*SHADES.values(), *SIZES.values()) for word in words}
PROPERTIES = (*SHAPES, *_SHARED, *_PLACES)
ONE_OF = {"What is the ground?": GROUNDS, "How many things are there?": COUNTS}


def checklist_of(scene: Scene) -> list[dict]:
    """The questions about a scene: {question, answer}, and choices unless these are yes and no."""
    things = frozenset().union(*(thing.facts() for thing in scene.things))
    pairs = list(permutations(scene.things, 2))
    truth = {f"Is anything {name}?": name in things for name in PROPERTIES}
    for name, holds in RELATIONS.items():
        truth[f"Is anything {name} another thing?"] = any(holds(*pair) for pair in pairs)
    asked = [{"question": text, "answer": "yes" if true else "no"} for text, true in truth.items()]
    for text, choices in ONE_OF.items():
        [answer] = scene.facts() & set(choices)
        asked.append({"question": text, "answer": answer, "choices": list(choices)})
    return asked


def judge(caption: str) -> list[str]:
    """The answers to the questions of `checklist_of` that follow from a caption."""
    stated = {fact.what for fact in read_caption(caption).facts()}
    answers = ["yes" if name in stated else NOT_SAID for name in (*PROPERTIES, *RELATIONS)]
    for choices in ONE_OF.values():
        answers.append(next((name for name in choices if name in stated), NOT_SAID))
    return answers
