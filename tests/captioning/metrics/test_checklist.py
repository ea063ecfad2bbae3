"""Checklists: scores, published files, and replies that cannot be read."""

import json

import pytest

from captioning.metrics.bootstrap import ratio_estimate
from captioning.metrics.checklist import (
    NOT_SAID,
    Question,
    checklist_scores,
    judge_prompt,
    read_checklist,
    read_reply,
)
from captioning.metrics.evaluator import Settings, build_evaluators
from captioning.metrics.scoring import score
from captioning.runtime.errors import UserError
from tests.captioning.chat_server import said


def last(server):
    """Return the last question."""
    return server.asked[-1][2]["messages"][0]["content"]


def scored(server, tmp_path, checklist, captions):
    path = tmp_path / "checklist.json"
    path.write_text(json.dumps(checklist))
    given = {"judge_url": server.url, "judge_model": "wise", "checklist": str(path)}
    evaluators = build_evaluators(["checklist"], Settings(cache_dir=tmp_path), **given)
    return score(captions, {image_id: ["a"] for image_id in captions}, evaluators)


def test_scores_are_shares_of_the_set():
    """Of five questions with a valid reply, the captions answer four, and three of them right."""
    lists = [
        [Question("Red?"), Question("A cat?", "no"), Question("A dog?")],
        [Question("Big?")] * 2,
    ]
    answers = [["yes", "no", NOT_SAID], ["yes", "no"]]
    found = checklist_scores([*answers, None], [*lists, lists[0]])
    values = {"checklist_coverage": ratio_estimate([2, 2, 0], [3, 2, 0], 100)}
    values["checklist_precision"] = ratio_estimate([2, 1, 0], [2, 2, 0], 100)
    assert found.metrics == values and found.settings["checklist_unread"] == 1
    assert found.per_caption["checklist_precision"] == [100, 50, None]


CAPEVAL = {
    "id": "DK001",
    "img_path": "DK001.jpg",
    "instance_checklist": [{"Tags": "object", "Question": "Is a robot mentioned?"}],
    "human_checklist": [],
    "text_checklist": [{"Tags": "text_content", "Question": "Is 'Strain gauge' mentioned?"}],
}
CAPTIONQA = {
    "id": "nat_001",
    "image_paths": ["images/1.jpg"],
    "questions": [{"question": "What colour?", "answer": "Red", "choices": ["Red", "1"]}],
}


def test_checklists_are_read_as_they_are_published(tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text(f"{json.dumps(CAPEVAL)}\n{json.dumps(CAPTIONQA)}\n")
    robot = [Question("Is a robot mentioned?"), Question("Is 'Strain gauge' mentioned?")]
    colour = [Question("What colour?", "Red", ("Red", "1"))]
    assert read_checklist(path) == {
        "DK001": robot, "DK001.jpg": robot, "nat_001": colour,
        "images/1.jpg": colour, "1.jpg": colour,
    }  # fmt: skip
    assert "1. What colour? (Red / 1 / not said)\n" in judge_prompt("a\nb", colour)
    for reply, answers in {
        '{"1": "red"}': ["Red"], '{"1": 1}': ["1"], 'So: {"1": "Not said "}.': [NOT_SAID],
        '{"1": "blue"}': None, '{"2": "Red"}': None, "Red": None,
    }.items():  # fmt: skip
        assert read_reply(reply, colour) == answers


def test_unreadable_replies_are_counted_and_answers_kept(server, tmp_path):
    server.usual = lambda: said('{"1": "No", "2": "yes"}' if "kite" in last(server) else "yes")
    checklist = {1: [{"question": "A dog?", "answer": "no"}, "A kite?"], 2: ["A", "B"]}
    for _ in range(2):
        found = scored(server, tmp_path, checklist, {1: "a kite", 2: "a dog"})
        assert found.settings["checklist_unread"] == 1
        assert found.per_caption["checklist_precision"] == [100, None]
        assert found.metrics["checklist_coverage"].value == 100
    assert len(server.asked) == 1 + 3 + 3  # that of the kite is kept


def test_each_caption_of_an_image_is_asked_its_questions(server, tmp_path):
    server.usual = lambda: said('{"1": "yes"}' if "a dog" in last(server) else '{"1": "no"}')
    captions = {"a.jpg#0": "a dog", "a.jpg#1": "a cat", "b.jpg": "a dog"}
    found = scored(server, tmp_path, {"a.jpg": ["A dog?"], "b.jpg": ["Dogs?"]}, captions)
    assert found.per_caption["checklist_precision"] == [100, 0, 100]
    found = scored(server, tmp_path, {"a.jpg": ["A dog?"]}, {"c.jpg#0": "a dog"})
    assert "has no entry for image 'c.jpg':" in found.skipped["checklist_coverage"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({7: []}, "image '7' has no questions"),
        ({7: [{"question": "A dog?", "answer": "maybe"}]}, 'image \'7\': {"question": "A dog?", '),
        ([{"img_path": "a.jpg"}], "entry 1 is no object with an id"),
    ],
)
def test_bad_checklists_are_one_line(server, tmp_path, content, message):
    try:
        reason = scored(server, tmp_path, content, {7: "a dog"}).skipped["checklist_coverage"]
    except UserError as error:
        reason = str(error)
    assert message in reason and "checklist.json" in reason and "\n" not in reason
    assert not server.asked
