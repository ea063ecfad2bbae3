"""Checklists: scores, published files, and replies that cannot be read."""

import json

import pytest

from captioning.metrics.base import Settings, build_evaluators
from captioning.metrics.checklist import read_checklist
from captioning.metrics.intervals import ratio_estimate
from captioning.metrics.scoring import score
from captioning.runtime.errors import UserError
from tests.captioning.chat_server import said
from tests.programs import raises_line


def last(server):
    """Return the last question."""
    return server.asked[-1][2]["messages"][0]["content"]


def scored(server, tmp_path, checklist, captions):
    path = tmp_path / "checklist.json"
    path.write_text(json.dumps(checklist))
    given = {"judge_url": server.url, "judge_model": "wise", "checklist": str(path)}
    evaluators = build_evaluators(["checklist"], Settings(cache_dir=tmp_path), **given)
    return score(captions, {image_id: ["a"] for image_id in captions}, evaluators)


def test_scores_are_shares_of_the_set_and_answers_are_kept(server, tmp_path):
    """Of six questions with a valid reply, the captions answer five, and three with yes."""
    replies = {"a kite": '{"1": "Yes", "2": "yes", "3": "Not said ", "4": "no"}'}
    replies.update({"a\nb": 'So: {"1": "yes", "2": "no"}.', "a dog": "yes"})
    server.usual = lambda: said(
        next(
            reply
            for text, reply in replies.items()
            if f"\n{' '.join(text.split())}\n" in last(server)
        )
    )
    questions = {1: ["A?", "B?", "C?", "D?"], 2: ["A?", "B?"], 3: ["A?"]}
    for _ in range(2):
        found = scored(server, tmp_path, questions, dict(enumerate(replies, 1)))
        values = {"checklist_coverage": ratio_estimate([3, 2, 0], [4, 2, 0], 100)}
        values["checklist_precision"] = ratio_estimate([2, 1, 0], [3, 2, 0], 100)
        assert found.metrics == values and found.settings["checklist_unread"] == 1
        assert found.per_caption["checklist_precision"] == [200 / 3, 50, None]
        answers = [["yes", "yes", "not said", "no"], ["yes", "no"], None]
        assert found.details == {"checklist_answers": answers}
    assert len(server.asked) == 1 + 1 + 3 + 3  # the invalid reply is not kept
    assert "\n1. A? (yes / no / not said)\n2. B?" in server.asked[0][2]["messages"][0]["content"]


@pytest.mark.parametrize("reply", ['{"1": "maybe"}', '{"2": "yes"}', "yes", '{"1": 1}'])
def test_a_reply_has_an_answer_to_each_question(server, tmp_path, reply):
    server.usual = lambda: said(reply)
    found = scored(server, tmp_path, {1: ["A?"]}, {1: "a"})
    assert found.settings["checklist_unread"] == 1 and not found.metrics


CAPEVAL = {
    "id": "DK001",
    "img_path": "images/DK001.jpg",
    "instance_checklist": [{"Tags": "object", "Question": "Is a robot mentioned?"}],
    "human_checklist": [],
    "text_checklist": [{"Tags": "text_content", "Question": "Is 'Strain gauge' mentioned?"}],
}


def test_a_checklist_is_read_as_it_is_published(tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text(f"{json.dumps(CAPEVAL)}\n")
    robot = ["Is a robot mentioned?", "Is 'Strain gauge' mentioned?"]
    assert read_checklist(path) == dict.fromkeys(("DK001", "images/DK001.jpg", "DK001.jpg"), robot)
    path.write_text('{"id": "DK001"}')
    with raises_line(UserError, "list.jsonl: expected"):
        read_checklist(path)


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
        ({7: [{"question": "A dog?", "answer": "no"}]}, "image '7' has no questions"),
        (["A dog?"], "expected {image id: [question]}"),
    ],
)
def test_bad_checklists_are_one_line(server, tmp_path, content, message):
    with raises_line(UserError, message, "checklist.json"):
        scored(server, tmp_path, content, {7: "a dog"})
    assert not server.asked
