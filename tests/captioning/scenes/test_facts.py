"""The facts of captions whose truth is written out by hand, and the simulated annotators."""

import random
from statistics import mean

import pytest

from captioning.scenes import facts
from captioning.scenes.annotators import describe_all
from captioning.scenes.facts import mark_words, read_caption, true_facts
from captioning.scenes.make import random_scene
from captioning.scenes.world import Scene, Thing

RED = Thing("circle", "crimson", "huge", column=0, row=0)
BLUE = Thing("star", "azure", "tiny", column=2, row=1)
SCENE = Scene("sand", (RED, BLUE))
CENTRE = Scene("snow", (Thing("heart", "plum", "small", column=1, row=1),))


@pytest.mark.parametrize(
    ("caption", "true", "stated"),
    [
        ("", 0, 0),
        ("a square", 0, 1),
        ("a crimson circle", 3, 3),  # red and dark
        ("a coral circle", 2, 3),  # red, but light
        ("a dark red red circle", 3, 3),  # said twice, counted once
        ("a large star", 1, 2),
        ("a tiny circle", 2, 3),  # rather the tiny star than the huge circle
        ("a circle in the upper left corner", 3, 3),
        ("a star on the right", 2, 2),
        ("a star in the middle", 1, 2),  # its row is the middle one, its column is not
        ("two shapes", 1, 1),
        ("a star on the beach", 2, 2),
        ("a star on the grass on the grass", 1, 2),
        ("a star to the right of a circle", 3, 3),
        ("a circle next to a star", 2, 3),  # two columns apart
        ("a circle above", 1, 1),  # what it is above is not said
        ("a red star and a blue circle", 2, 4),
        ("a red", 1, 1),  # cut off
        ("a circle and a circle", 1, 2),  # there is one
        ("a circle and a star and an object", 2, 3),  # there are two things
        ("a shape and a circle", 2, 2),  # the shape is the star
        ("left a circle", 1, 1),  # a place of nothing
        ("A Crimson circle.", 3, 3),
        (" and ".join(["a red circle", "a blue star"] * 10), 4, 40),  # read in time
        ("a heart in the centre", 2, 2),  # of CENTRE
        ("a heart at the top", 1, 2),
    ],
)
def test_a_caption_states_the_facts_that_were_counted_by_hand(caption, true, stated):
    scene = CENTRE if "heart" in caption else SCENE
    statement = read_caption(caption)
    assert (len(true_facts(statement, scene)), len(statement.facts())) == (true, stated)
    assert true <= facts.max_true_facts(statement.facts(), scene) <= stated


def test_the_words_of_facts_are_marked_as_right_or_wrong():
    marked = dict(mark_words("a coral disc and a zebra on the lawn", SCENE))
    facts = {"coral": False, "disc": True, "lawn": False}  # a zebra is no word of this world
    assert marked == {**dict.fromkeys(["a", "and", "zebra", "on", "the"]), **facts}


def test_annotators_say_what_is_true_and_each_says_more_than_the_one_before():
    rng = random.Random(5)
    lengths, counts, sizes = [], [], set()
    for _ in range(300):
        scene = random_scene(rng)
        sizes.add(len(scene.things))
        assert len({(thing.column, thing.row) for thing in scene.things}) == len(scene.things)
        captions = describe_all(scene, rng)
        statements = list(map(read_caption, captions))
        assert all(true_facts(each, scene) == each.facts() for each in statements), captions
        lengths.append([len(caption.split()) for caption in captions])
        counts.append([len(each.facts()) for each in statements])
    assert sizes == {1, 2, 3}
    for by_annotator in ([mean(of_one) for of_one in zip(*said)] for said in (lengths, counts)):
        assert by_annotator == sorted(by_annotator)
        assert by_annotator[-1] > 2.5 * by_annotator[0]
