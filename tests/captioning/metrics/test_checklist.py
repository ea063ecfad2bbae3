"""Checklists: a judge that knows the facts, published files, and replies that cannot be read."""

import json
import random
import re

import pytest

from captioning.files import chat
from captioning.metrics.checklist import NOT_SAID, Question, prompt, read_checklist, read_reply
from captioning.metrics.evaluator import Settings, build_evaluators
from captioning.metrics.scoring import score
from captioning.runtime.errors import UserError
from captioning.scenes.facts import describe_all, read_caption, true_facts
from captioning.scenes.make import make_scenes, read_scenes
from tests.captioning.chat_server import said, serving


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(chat, "WAITS_S", (0, 0.01, 0.01))
    with serving() as server:
        yield server


def scored(server, tmp_path, checklist, captions, **more):
    path = tmp_path / "checklist.json"
    path.write_text(json.dumps(checklist))
    given = {"judge_url": server.url, "judge_model": "wise", "checklist": str(path), **more}
    names = ["checklist", *(["facts"] if more else [])]
    evaluators = build_evaluators(names, Settings(cache_dir=tmp_path), **given)
    return score(captions, {image_id: ["a"] for image_id in captions}, evaluators)


def test_an_exact_judge_counts_the_facts(server, tmp_path):
    """A question is a fact that some annotator states of the image or of another one."""
    make_scenes(tmp_path / "scenes", splits={"test": 40})
    scenes = read_scenes(tmp_path / "scenes" / "scenes.json")
    rng = random.Random(0)
    human = {i: describe_all(scene, rng) for i, scene in scenes.items()}
    captions = {i: rng.choice(human[i if i % 2 else (i + 1) % 40]) for i in scenes}
    texts = {i: [*human[i], captions[i]] for i in scenes}
    facts = {
        i: sorted({f for t in texts[i] for f in read_caption(t).facts()}, key=str) for i in scenes
    }
    checklist = {i: [json.dumps([i, *fact]) for fact in sorted(facts[i], key=str)] for i in scenes}

    def answer():
        text = server.asked[-1][2]["messages"][0]["content"]
        caption = text.splitlines()[1]
        asked = [json.loads(line) for line in re.findall(r"^\d+\. (\[.*\]) \(yes", text, re.M)]
        statement = read_caption(caption)
        stated, true = statement.facts(), true_facts(statement, scenes[asked[0][0]])
        found = [
            ("yes" if tuple(fact) in true else "no") if tuple(fact) in stated else NOT_SAID
            for _, *fact in asked
        ]
        return said(json.dumps(dict(enumerate(found, 1))))

    server.usual = answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captioning.metrics.judge.AT_ONCE", 1)
        facts_file = str(tmp_path / "scenes" / "scenes.json")
        found = scored(server, tmp_path, checklist, captions, facts_file=facts_file)
    answers = found.details["checklist_answers"]
    assert [a.count("yes") for a in answers] == found.per_image["true_facts"]
    precision, wrong = (found.metrics[name] for name in ("checklist_precision", "wrong_facts"))
    assert precision.value == 100 - wrong.value and 0 < wrong.value < 100
    assert (precision.low, precision.high) == pytest.approx((100 - wrong.high, 100 - wrong.low))
    total = sum(map(len, answers))
    said_all = total - sum(a.count(NOT_SAID) for a in answers)
    assert found.metrics["checklist_coverage"].value == 100 * said_all / total


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


def test_published_files(tmp_path):
    path = tmp_path / "list.jsonl"
    path.write_text(f"{json.dumps(CAPEVAL)}\n{json.dumps(CAPTIONQA)}\n")
    robot = [Question("Is a robot mentioned?"), Question("Is 'Strain gauge' mentioned?")]
    colour = [Question("What colour?", "Red", ("Red", "1"))]
    assert read_checklist(path) == {
        "DK001": robot, "DK001.jpg": robot, "nat_001": colour,
        "images/1.jpg": colour, "1.jpg": colour,
    }  # fmt: skip
    assert "1. What colour? (Red / 1 / not said)\n" in prompt("a\nb", colour)
    for reply, answers in {
        '{"1": "red"}': ["Red"], '{"1": 1}': ["1"], 'So: {"1": "Not said "}.': [NOT_SAID],
        '{"1": "blue"}': None, '{"2": "Red"}': None, "Red": None,
    }.items():  # fmt: skip
        assert read_reply(reply, colour) == answers


def test_unreadable_replies_are_counted_and_answers_kept(server, tmp_path):
    server.usual = lambda: said(
        '{"1": "No", "2": "yes"}'
        if "kite" in server.asked[-1][2]["messages"][0]["content"]
        else "yes"
    )
    checklist = {1: [{"question": "A dog?", "answer": "no"}, "A kite?"], 2: ["A", "B"]}
    for _ in range(2):
        found = scored(server, tmp_path, checklist, {1: "a kite", 2: "a dog"})
        assert found.settings["checklist_unread"] == 1
        assert found.per_image["checklist_precision"] == [100, None]
        assert found.metrics["checklist_coverage"].value == 100
    assert len(server.asked) == 1 + 3 + 3  # that of the kite is kept


def test_each_caption_of_an_image_is_asked_its_questions(server, tmp_path):
    server.usual = lambda: said(
        f'{{"1": "{"yes" if "a dog" in server.asked[-1][2]["messages"][0]["content"] else "no"}"}}'
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("captioning.metrics.judge.AT_ONCE", 1)
        captions = {"a.jpg#0": "a dog", "a.jpg#1": "a cat", "b.jpg": "a dog"}
        found = scored(server, tmp_path, {"a.jpg": ["A dog?"], "b.jpg": ["Dogs?"]}, captions)
        assert found.per_image["checklist_precision"] == [100, 0, 100]
        found = scored(server, tmp_path, {"a.jpg": ["A dog?"]}, {"c.jpg#0": "a dog"})
    assert (
        found.skipped["checklist_coverage"]
        .partition(": ")[0]
        .endswith("has no question for image 'c.jpg'")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no question for image 7"),
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
