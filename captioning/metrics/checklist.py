"""Scores captions by a checklist: a judge answers questions about the image from a caption alone.

checklist_coverage   questions that the caption answers, among all questions, per cent
checklist_precision  right answers, among the questions that the caption answers, per cent

In CAPEval (arXiv 2608.02589), coverage is (yes + no) / all and precision is yes / (yes + no). There
yes and no are numbers of answers, and all is the number of questions, about all captions of a set.
Multiple-choice questions as in CaptionQA (arXiv 2511.21025) get the same two scores.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple, Optional

from pydantic import Field

from captioning.data.annotations import ImageId
from captioning.files.reading import parse_json_lines, read_json, read_text
from captioning.metrics.evaluator import CaptionSet, Scores, entries_of
from captioning.metrics.judge import JudgeEvaluator, JudgeOptions, first_object
from captioning.metrics.options import FILE
from captioning.runtime.errors import UserError

NOT_SAID = "not said"
YES, NO = "yes", "no"

QUESTION = """\
Answer questions about an image that you do not see. All you know is this caption:
{caption}
Each question is followed by its possible answers. Choose the one that follows from the caption. \
Choose "no" only if the caption contradicts what is asked, and "not said" if it leaves it open.
{questions}
Answer with a JSON object and nothing else. Its keys are the numbers of all questions, and its \
values are the chosen answers, word for word."""


class Question(NamedTuple):
    """A question about an image. answer: the right answer, one of `choices`."""

    text: str
    answer: str = YES
    choices: tuple[str, ...] = (YES, NO)


class ChecklistOptions(JudgeOptions):
    checklist: Annotated[Optional[str], "scoring", FILE] = Field(
        None, description="questions about each image, in JSON or JSON lines"
    )


class Checklist(JudgeEvaluator):
    """Computes the scores over the captions for which the judge's reply is valid.

    The setting `checklist_unread` is the number of captions without a valid reply. The detail
    `checklist_answers` lists for each caption the answers to its questions, where "not said" means
    no answer; it is None for a caption without a valid reply.
    """

    name = "checklist"
    Options = ChecklistOptions
    required = ("checklist", "judge_url", "judge_model")

    def prepare(self) -> None:
        super().prepare()
        self.questions = read_checklist(Path(self.options.checklist))

    def evaluate(self, captions: CaptionSet) -> Scores:
        entries = entries_of(captions.ids, self.questions, self.options.checklist)
        prompts, readers = [], {}
        for image_id, questions in entries.items():
            prompt = judge_prompt(captions.predictions[image_id], questions)
            prompts.append(prompt)
            readers[prompt] = partial(read_reply, questions=questions)
        verdicts = self.verdicts(readers)
        scores = checklist_scores([verdicts[each] for each in prompts], list(entries.values()))
        scores.settings["checklist_judge"] = self.judge
        return scores


def checklist_scores(
    answers: Sequence[Optional[Sequence[str]]], checklists: Sequence[Sequence[Question]]
) -> Scores:
    """Return the scores of N captions.

    answers: for each caption, one answer per question, or None if the judge gave no valid reply.
    checklists: for each caption, its questions.
    """
    asked, said, right = [], [], []  # per caption: the number of such questions
    for caption_answers, questions in zip(answers, checklists):
        valid = list(caption_answers or ())
        asked.append(len(valid))
        said.append(len(valid) - valid.count(NOT_SAID))
        right.append([q.answer == answer for q, answer in zip(questions, valid)].count(True))
    return Scores.from_ratios(
        {"checklist_coverage": (said, asked), "checklist_precision": (right, said)},
        settings={"checklist_question": QUESTION, "checklist_unread": answers.count(None)},
        details={"checklist_answers": answers},
    )


def judge_prompt(caption: str, questions: Sequence[Question]) -> str:
    """Return the judge's prompt about a caption."""
    lines = (
        f"{number}. {each.text} ({' / '.join([*each.choices, NOT_SAID])})"
        for number, each in enumerate(questions, 1)
    )
    return QUESTION.format(caption=" ".join(caption.split()), questions="\n".join(lines))


def read_reply(reply: str, questions: Sequence[Question]) -> Optional[list[str]]:
    """Return the answer to each question; None if a question has no valid answer in the reply."""

    def parse_answers(reply_object):
        answers = []
        for number, each in enumerate(questions, 1):
            choices = {choice.strip().casefold(): choice for choice in (*each.choices, NOT_SAID)}
            answer = str(reply_object[str(number)])
            answers.append(choices[answer.strip().casefold()])
        return answers

    return first_object(reply, parse_answers)


def read_checklist(path: Path) -> dict[ImageId, list[Question]]:
    """Return {image id: questions} of a file. Raises UserError. The file has one of the formats:

    - {image id: [question or {question, answer, choices}]}
    - CAPEval's lines {id, img_path, ..._checklist: [{Question}]}; the right answer is always "yes"
    - CaptionQA's rows {id, image_paths, questions: [{question, answer, choices}]}, a list or lines

    In the last two formats, the result contains the questions of an image three times: under its
    id, its path and its file name.
    """
    if path.suffix == ".jsonl":
        rows = [row for _, row in parse_json_lines(read_text(path).split("\n"), path)]
    else:
        rows = read_json(path)
    if isinstance(rows, dict):
        return {
            image_id: _parse_questions(path, image_id, listed) for image_id, listed in rows.items()
        }
    questions_by_name = {}
    for number, row in enumerate(rows if isinstance(rows, list) else [None], 1):
        if not isinstance(row, dict) or not isinstance(row.get("id"), (str, int)):
            raise UserError(f"{path}: entry {number} is no object with an id")
        listed = row.get("questions")
        if listed is None:
            lists = (row[name] for name in row if name.endswith("_checklist"))
            listed = [item for each in lists if isinstance(each, list) for item in each]
        questions = _parse_questions(path, row["id"], listed)
        for name in _names_of(row):
            if questions_by_name.setdefault(name, questions) != questions:
                raise UserError(f"{path}: {name!r} names two entries: keep one")
    return questions_by_name


def _names_of(row):
    """Return the id of a row, then the paths and the names of its image's files."""
    paths = row.get("image_paths")
    files = [row.get("img_path"), *(paths if isinstance(paths, list) else [paths])]
    files = [file for file in files if isinstance(file, str)]
    return [row["id"], *files, *(PurePosixPath(file).name for file in files)]


def _parse_questions(path: Path, image_id: ImageId, listed: Any) -> list[Question]:
    if not isinstance(listed, list) or not listed:
        raise UserError(f"{path}: image {image_id!r} has no questions")
    return [_parse_question(path, image_id, item) for item in listed]


def _parse_question(path: Path, image_id: ImageId, item: Any) -> Question:
    fields = {"question": item} if isinstance(item, str) else item
    fields = fields if isinstance(fields, dict) else {}
    text = fields.get("question", fields.get("Question"))
    choices = fields.get("choices", (YES, NO))
    answer = fields.get("answer", None if "choices" in fields else YES)
    texts = [text, answer, *(choices if isinstance(choices, (list, tuple)) else [None])]
    if not all(isinstance(each, str) for each in texts) or answer not in choices:
        raise UserError(
            f"{path}: image {image_id!r}: {json.dumps(item)[:200]} is no question: expected a "
            "text, or {question, answer, choices} with the answer among the choices"
        )
    return Question(text, answer, tuple(choices))
