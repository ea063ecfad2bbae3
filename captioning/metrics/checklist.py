"""Scores captions by a checklist: a judge answers questions about the image from a caption alone.

checklist_coverage   questions that the caption answers, among all questions, per cent
checklist_precision  answers "yes", among the questions that the caption answers, per cent

In CAPEval (arXiv 2608.02589), coverage is (yes + no) / all and precision is yes / (yes + no). There
yes and no are numbers of answers, and all is the number of questions, about all captions of a set.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Optional

from captioning.data.annotations import ImageId
from captioning.files.reading import parse_json_lines, read_json, read_text
from captioning.metrics.base import CaptionSet, Metric, Scores, entries_of, option
from captioning.metrics.clair import Judge, first_object
from captioning.runtime.errors import UserError

YES, NOT_SAID = "yes", "not said"
ANSWERS = (YES, "no", NOT_SAID)

QUESTION = """\
Answer questions about an image that you do not see. All you know is this caption:
{caption}
Each question is followed by its possible answers. Choose the one that follows from the caption. \
Choose "no" only if the caption contradicts what is asked, and "not said" if it leaves it open.
{questions}
Answer with a JSON object and nothing else. Its keys are the numbers of all questions, and its \
values are the chosen answers, word for word."""


class Checklist(Judge):
    """Computes the scores over the captions for which the judge's reply is valid.

    The setting `checklist_unread` is the number of captions without a valid reply. The detail
    `checklist_answers` lists for each caption the answers to its questions; it is None for a
    caption without a valid reply.
    """

    metrics = (
        Metric(
            "checklist_coverage",
            "Coverage",
            meaning="questions of a checklist that the caption answers",
            unit="%",
        ),
        Metric(
            "checklist_precision",
            "Precision",
            meaning="right answers among the answers to a checklist",
            unit="%",
        ),
    )
    options = {
        **Judge.options,
        "checklist": option(
            Optional[str], None, "questions about each image, in JSON or JSON lines"
        ),
    }
    required = ("checklist", "judge_url", "judge_model")

    def prepare(self) -> None:
        super().prepare()
        [path] = self.files("checklist")
        self.questions = read_checklist(path)

    def evaluate(self, captions: CaptionSet) -> Scores:
        entries = entries_of(captions.ids, self.questions, self.config.checklist)
        readers, prompts = {}, []
        for image_id, questions in entries.items():
            prompts.append(judge_prompt(captions.predictions[image_id], questions))
            readers[prompts[-1]] = partial(read_reply, count=len(questions))
        verdicts = self.verdicts(readers)
        scores = checklist_scores([verdicts[prompt] for prompt in prompts])
        scores.settings["checklist_judge"] = self.judge
        return scores


def checklist_scores(answers: Sequence[Optional[Sequence[str]]]) -> Scores:
    """Return the scores of N captions.

    answers: for each caption, one answer per question, or None if the judge gave no valid reply.
    """
    valid = [each or [] for each in answers]
    num_questions = [len(each) for each in valid]
    num_answered = [len(each) - each.count(NOT_SAID) for each in valid]
    num_yes = [each.count(YES) for each in valid]
    return Scores.from_ratios(
        {
            "checklist_coverage": (num_answered, num_questions),
            "checklist_precision": (num_yes, num_answered),
        },
        settings={"checklist_question": QUESTION, "checklist_unread": answers.count(None)},
        details={"checklist_answers": answers},
    )


def judge_prompt(caption: str, questions: Sequence[str]) -> str:
    """Return the judge's prompt about a caption."""
    lines = (f"{n}. {text} ({' / '.join(ANSWERS)})" for n, text in enumerate(questions, 1))
    return QUESTION.format(caption=" ".join(caption.split()), questions="\n".join(lines))


def read_reply(reply: str, count: int) -> Optional[list[str]]:
    """Return the answers to `count` questions; None if one has no valid answer in the reply."""

    def parse_answers(reply_object):
        answers = [str(reply_object[str(n)]).strip().casefold() for n in range(1, count + 1)]
        if not set(answers) <= set(ANSWERS):
            raise ValueError
        return answers

    return first_object(reply, parse_answers)


def read_checklist(path: Path) -> dict[ImageId, list[str]]:
    """Return {image id: questions} of a file. Raises UserError. The file has one of the formats:

    - {image id: [question]}
    - CAPEval's lines {id, img_path, ..._checklist: [{Question}]}. The result has the questions of
      an image under its id, its path and its file name
    """
    if path.suffix == ".jsonl":
        rows = [row for _, row in parse_json_lines(read_text(path).split("\n"), path)]
        checklist = {}
        for row in rows:
            for name, questions in _of_row(row, path).items():
                if checklist.setdefault(name, questions) != questions:
                    raise UserError(f"{path}: {name!r} names two entries: keep one")
    else:
        checklist = read_json(path)
    for image_id, questions in checklist.items() if isinstance(checklist, dict) else [(None, None)]:
        if not (questions and isinstance(questions, list) and set(map(type, questions)) == {str}):
            raise UserError(
                f"{path}: image {image_id!r} has no questions: expected {{image id: [question]}}, "
                "or the lines of CAPEval"
            )
    return checklist


def _of_row(row: Any, path: Path) -> dict[str, list[str]]:
    """Return {name: questions} of a line of CAPEval, by all names of its image."""
    try:
        lists = [row[name] for name in row if name.endswith("_checklist")]
        questions = [item["Question"] for each in lists for item in each]
        names = row["id"], row["img_path"], PurePosixPath(row["img_path"]).name
        return dict.fromkeys(names, questions)
    except (LookupError, TypeError, AttributeError):
        raise UserError(f"{path}: a line is no entry of CAPEval, with id and img_path") from None
