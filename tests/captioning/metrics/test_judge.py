"""CLAIR and checklists: the questions, the verdict in a reply, and the replies that are kept."""

import json

import pytest

from captioning.files import chat
from captioning.metrics import judge
from captioning.metrics.base import Settings, build_evaluators
from captioning.metrics.checklist import read_checklist
from captioning.metrics.clair import Clair
from captioning.metrics.intervals import mean_estimate, ratio_estimate
from captioning.metrics.scoring import write_scores
from captioning.runtime.errors import UserError
from tests.captioning.chat_server import said, serving
from tests.captioning.metrics.conftest import scored
from tests.programs import raises_line

CAPTIONS = {1: "a dog on a sofa", 2: "two red\nballs", 3: "a kite"}
REFERENCES = {1: ["a puppy sleeps", "a dog lies down"], 2: ["balls"], 3: ["the sky"]}
SECRET = "sk-very-secret"


def good(score=80, reason="alike"):
    return said(json.dumps({"score": score, "reason": reason}))


@pytest.fixture
def server(monkeypatch):
    """Return a server of a language model, which is asked one question at a time."""
    monkeypatch.setattr(chat, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(judge, "CONCURRENCY", 1)
    monkeypatch.setenv(judge.KEY_VARIABLE, SECRET)
    with serving() as server:
        server.usual = good
        yield server


@pytest.fixture
def ask(server, tmp_path):
    """Return a function that scores captions by CLAIR, or by a checklist if there is one."""

    def evaluate(captions, references=None, checklist=None, model="wise"):
        given = {"judge_url": server.url, "judge_model": model}
        if checklist:
            (tmp_path / "list.json").write_text(json.dumps(checklist))
            given["checklist"] = str(tmp_path / "list.json")
        settings = Settings(cache_dir=tmp_path)
        return scored(
            "checklist" if checklist else "clair", captions, references, settings, **given
        )

    return evaluate


def question(server, number=-1):
    return server.asked[number][2]["messages"][0]["content"]


def test_the_question_is_asked_once_and_the_answer_kept(ask, server, tmp_path):
    scores = {"dog": 90, "balls": 40, "kite": "20.5"}
    server.usual = lambda: good(next(scores[word] for word in scores if word in question(server)))
    found = ask(CAPTIONS, REFERENCES)
    assert found.metrics["CLAIR"] == mean_estimate([90, 40, 20.5])
    assert list(found.per_caption["CLAIR"]) == [90, 40, 20.5]
    assert list(found.details["clair_reason"]) == ["alike"] * 3
    assert found.settings == {
        "clair_judge": f"wise of {server.url}",
        "clair_question": Clair.question,
        "clair_unread": 0,
    }
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {SECRET}"
    [message] = body.pop("messages")
    assert body == {"model": "wise", "temperature": 0} and message["role"] == "user"
    asked = "\n- a dog on a sofa\nReference captions:\n- a puppy sleeps\n- a dog lies down\n"
    assert asked in message["content"] and "\n- two red balls\n" in question(server, 1)
    assert ask(CAPTIONS, REFERENCES) == found and len(server.asked) == 3
    same = ask(dict.fromkeys(range(5), "a dog"))
    assert same.metrics["CLAIR"].n == 5 and len(server.asked) == 4  # each question once
    assert ask(CAPTIONS, REFERENCES, model="other").metrics and len(server.asked) == 7
    write_scores(tmp_path / "out", found, CAPTIONS, "command")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2 + 7
    assert not any(SECRET.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ('Sure!\n```json\n{"reason": "{no}", "score": 0}\n```', (0, "{no}")),
        ('{"thoughts": 1} {"score": "12.5"}', (12.5, None)),
        ('{"answer": {"score": 7, "reason": null}}', (7, None)),
        ('<think>First {"score": 10}?</think>{"score": 60}', (60, None)),  # a draft
        ('<think>First {"score": 10}?', None),  # cut before its verdict
        *((f'{{"score": {score}}}', None) for score in ("101", "-1", "true", "NaN")),
        *((text, None) for text in ("85 of 100", '{"score": 80', "{" * 5000)),
    ],
)
def test_a_reply_is_a_score_from_0_to_100_and_a_reason_or_none(ask, server, reply, verdict):
    server.usual = lambda: said(reply)
    found = ask({1: "a dog"})
    columns = found.per_caption["CLAIR"], found.details["clair_reason"]
    assert list(zip(*columns)) == [verdict or (None, None)]
    assert found.settings["clair_unread"] == (verdict is None)
    assert len(server.asked) == (1 if verdict else 3)  # what cannot be read is asked again


def test_a_refusal_ends_the_questions_and_keeps_the_answers(ask, server):
    captions = {i: str(i) for i in range(20)}
    server.answers, server.usual = [good(50)], lambda: (401, {}, "who?")
    assert "who?" in ask(captions).skipped["CLAIR"] and len(server.asked) < 20
    server.usual = good
    assert sorted(ask(captions).per_caption["CLAIR"]) == [50] + [80] * 19


def test_the_address_is_looked_at_before_captions_are_made(server, tmp_path):
    given = {"judge_url": server.url, "judge_model": "wise"}
    [evaluator] = build_evaluators(["clair"], Settings(cache_dir=tmp_path), **given)
    for models, part in (((401, {}, "who are you?"), "who are you?"), ("close", server.url)):
        server.models = models
        assert part in evaluator.unavailable()["CLAIR"]
    server.models = (404, {}, "")  # some have no list of models
    assert evaluator.unavailable() == {} and not server.asked


def test_a_damaged_reply_is_asked_again_and_a_forbidden_cache_refused(ask, tmp_path, server):
    ask({1: "a dog"})
    [kept] = (tmp_path / "judge").iterdir()
    for number, text in enumerate(("", '{"model": "wise"}'), 2):
        kept.write_text(text)
        assert ask({1: "a dog"}).metrics["CLAIR"].value == 80 and len(server.asked) == number
    given = {"judge_url": server.url, "judge_model": "wise"}
    with raises_line(UserError, str(kept)):
        scored("clair", CAPTIONS, None, Settings(cache_dir=kept), **given)


def test_coverage_and_precision_are_shares_of_the_set_and_answers_are_kept(ask, server):
    """Of six questions with a valid reply, the captions answer five, and three with yes."""
    replies = {"a kite": '{"1": "Yes", "2": "yes", "3": "Not said ", "4": "no"}'}
    replies.update({"a b": 'So: {"1": "yes", "2": "no"}.', "a dog": '{"2": "yes"}'})
    server.usual = lambda: said(
        next(replies[text] for text in replies if f"\n{text}\n" in question(server))
    )
    questions = {1: ["A?", "B?", "C?", "D?"], 2: ["A?", "B?"], 3: ["A?"]}
    for _ in range(2):
        found = ask({1: "a kite", 2: "a\nb", 3: "a dog"}, None, questions)
        values = {"checklist_coverage": ratio_estimate([3, 2, 0], [4, 2, 0], 100)}
        values["checklist_precision"] = ratio_estimate([2, 1, 0], [3, 2, 0], 100)
        assert found.metrics == values and found.settings["checklist_unread"] == 1
        assert found.per_caption["checklist_precision"] == [200 / 3, 50, None]
        answers = [["yes", "yes", "not said", "no"], ["yes", "no"], None]
        assert found.details == {"checklist_answers": answers}
    assert len(server.asked) == 1 + 1 + 3 + 3  # the invalid reply is not kept
    assert "\n1. A? (yes / no / not said)\n2. B?" in question(server, 0)
    server.usual = lambda: said('{"1": "maybe"}')
    assert ask({1: "a"}, None, {1: ["A?"]}).settings["checklist_unread"] == 1


def test_a_checklist_is_read_as_it_is_published(tmp_path):
    row = {"id": "DK001", "img_path": "images/DK001.jpg", "human_checklist": []}
    row["instance_checklist"] = [{"Tags": "object", "Question": "Is a robot mentioned?"}]
    row["text_checklist"] = [{"Tags": "text", "Question": "Is 'Strain gauge' mentioned?"}]
    (tmp_path / "list.jsonl").write_text(json.dumps(row))
    questions = ["Is a robot mentioned?", "Is 'Strain gauge' mentioned?"]
    names = ("DK001", "images/DK001.jpg", "DK001.jpg")
    assert read_checklist(tmp_path / "list.jsonl") == dict.fromkeys(names, questions)
