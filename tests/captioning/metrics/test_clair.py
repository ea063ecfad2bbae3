"""CLAIR: the question, the verdict in a reply, and the replies that are kept."""

import json
import time

import pytest

from captioning.metrics.base import Settings, build_evaluators
from captioning.metrics.clair import Clair
from captioning.metrics.intervals import mean_estimate
from captioning.metrics.judge import KEY_VARIABLE as KEY
from captioning.metrics.scoring import score, write_scores
from captioning.runtime import signals
from captioning.runtime.errors import UserError
from tests.captioning.chat_server import said
from tests.programs import raises_line

CAPTIONS = {1: "a dog on a sofa", 2: "two red\nballs", 3: "a kite"}
REFERENCES = {1: ["a puppy sleeps", "a dog lies down"], 2: ["balls"], 3: ["the sky"]}
SECRET = "sk-very-secret"
MANY = {i: str(i) for i in range(20)}, {i: ["a"] for i in range(20)}


def good(score=80, reason="alike"):
    return said(json.dumps({"score": score, "reason": reason}))


@pytest.fixture
def ask(server, tmp_path):
    """Return a function that scores the captions."""
    server.usual = good

    def evaluate(captions=CAPTIONS, references=REFERENCES, **changes):
        given = {"judge_url": server.url, "judge_model": "wise", **changes}
        settings = Settings(cache_dir=given.pop("cache_dir", tmp_path))
        return score(captions, references, build_evaluators(["clair"], settings, **given))

    return evaluate


def test_the_question_is_asked_once_and_the_answer_kept(ask, server, tmp_path, monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    scores = {"dog": 90, "balls": 40, "kite": "20.5"}

    def answer():
        text = server.asked[-1][2]["messages"][0]["content"]
        return good(next(value for word, value in scores.items() if word in text), "because")

    server.usual = answer
    found = ask()
    assert found.metrics["CLAIR"] == mean_estimate([90, 40, 20.5])
    assert list(found.per_caption["CLAIR"]) == [90, 40, 20.5]
    assert list(found.details["clair_reason"]) == ["because"] * 3
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
    assert asked in message["content"]
    texts = [each["messages"][0]["content"] for *_, each in server.asked[1:]]
    assert any("\n- two red balls\n" in text for text in texts)  # on one line
    assert ask() == found and len(server.asked) == 3
    same = ask({i: "a dog" for i in range(5)}, {i: ["a cat"] for i in range(5)})
    assert same.metrics["CLAIR"].n == 5 and len(server.asked) == 4  # each question once
    del server.asked[3:]
    assert ask(judge_model="other").metrics and len(server.asked) == 6
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
        *((f'{{"score": {score}}}', None) for score in ("101", "-1", "true", "NaN", "null")),
        *((text, None) for text in ("85 of 100", '{"score": 80', "[80]", "{" * 5000, "")),
    ],
)
def test_a_reply_is_a_score_from_0_to_100_and_a_reason_or_none(ask, server, reply, verdict):
    server.usual = lambda: said(reply)
    found = ask({1: CAPTIONS[1]})
    columns = found.per_caption["CLAIR"], found.details["clair_reason"]
    assert list(zip(*columns)) == [verdict or (None, None)]
    assert found.settings["clair_unread"] == (verdict is None)
    assert len(server.asked) == (1 if verdict else 3)  # what cannot be read is asked again


def test_what_cannot_be_read_is_counted_and_asked_in_the_next_run(ask, server):
    unread = map(said, ("hm", "no", "{}", "never", "x"))
    server.answers = [next(unread), good(60), *unread, good(100)]
    found = ask()
    assert found.metrics["CLAIR"].value == 80 and found.settings["clair_unread"] == 1
    assert len(server.asked) == 7
    server.usual = lambda: good(20)
    assert ask().metrics["CLAIR"].value == 60 and len(server.asked) == 8  # it alone is asked again


def test_thoughts_are_no_verdict(ask, server):
    """A draft of the verdict is in the thoughts; the second answer is cut before its verdict."""
    draft = '<think>First {"score": 10}?'
    server.answers = [said(f'{draft}</think>{{"score": 60}}'), said(draft, finish_reason="length")]
    server.usual = lambda: said('{"score": 8', finish_reason="length")
    found = ask({1: CAPTIONS[1], 2: CAPTIONS[2]})
    assert found.metrics["CLAIR"].value == 60 and found.settings["clair_unread"] == 1
    server.usual = lambda: said('{"score": 80} Because', finish_reason="length")
    assert ask({2: CAPTIONS[2]}).metrics["CLAIR"].value == 80


@pytest.mark.parametrize("answer", [(503, {}, "busy"), (401, {}, "who?")])
def test_a_refusal_ends_the_questions(ask, server, answer):
    """What was answered before is kept."""
    server.answers, server.usual = [good(50)], lambda: answer
    reason = ask(*MANY).skipped["CLAIR"]
    assert answer[2] in reason and len(server.asked) < 20
    server.usual = good
    assert sorted(ask(*MANY).per_caption["CLAIR"]) == [50] + [80] * 19


def test_a_stop_ends_the_pauses_of_requests(ask, server, monkeypatch):
    server.usual, began = lambda: (429, {"Retry-After": "60"}, ""), time.monotonic()
    monkeypatch.setattr(signals, "stop_requested", lambda: bool(server.asked))
    with pytest.raises(signals.Stopped):
        ask()
    assert time.monotonic() - began < 20


def test_the_address_is_looked_at_before_captions_are_made(server, tmp_path):
    def reasons():
        given = {"judge_url": server.url, "judge_model": "wise"}
        return build_evaluators(["clair"], Settings(cache_dir=tmp_path), **given)[0].unavailable()

    server.models = (404, {}, "")  # some have no list of models
    assert reasons() == {}
    server.models = (401, {}, "who are you?")
    assert "who are you?" in reasons()["CLAIR"]
    server.models = "close"
    assert server.url in reasons()["CLAIR"] and not server.asked


def test_a_damaged_reply_is_asked_again_and_a_forbidden_cache_refused(ask, server, tmp_path):
    ask({1: CAPTIONS[1]})
    [kept] = (tmp_path / "judge").iterdir()
    for number, text in enumerate(("", "[]", '{"model": "wise"}'), 2):
        kept.write_text(text)
        assert ask({1: CAPTIONS[1]}).metrics["CLAIR"].value == 80 and len(server.asked) == number
    (tmp_path / "file").write_text("")
    with raises_line(UserError, str(tmp_path / "file")):
        ask(cache_dir=tmp_path / "file")
