"""Scores captions by a checklist: a judge answers questions about the image from a caption alone.

checklist_coverage   questions that the caption answers, among all questions, per cent
checklist_precision  answers "yes", among the questions that the caption answers, per cent

In CAPEval (arXiv 2608.02589), coverage is (yes + no) / all and precision is yes / (yes + no). There
yes and no are numbers of answers, and all is the number of questions, about all captions of a set.
"""

from pathlib import Path, PurePosixPath
from typing import Any, Optional

from captioning.data.caption_files import ImageId, entries_of
from captioning.files.reading import parse_json_lines, read_json, read_text
from captioning.metrics.base import CaptionSet, Metric, Scores, option
from captioning.metrics.judge import Judge
from captioning.runtime.errors import UserError

YES, NOT_SAID = "yes", "not said"
ANSWERS = (YES, "no", NOT_SAID)


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
    name = "checklist"
    question = """\
Answer questions about an image that you do not see. All you know is this caption:
{caption}
Each question is followed by its possible answers. Choose the one that follows from the caption. \
Choose "no" only if the caption contradicts what is asked, and "not said" if it leaves it open.
{lines}
Answer with a JSON object and nothing else. Its keys are the numbers of all questions, and its \
values are the chosen answers, word for word."""

    def prepare(self) -> None:
        super().prepare()
        [path] = self.files("checklist")
        self.questions = read_checklist(path)

    def evaluate(self, captions: CaptionSet) -> Scores:
        entries = entries_of(captions.ids, self.questions, self.config.checklist)
        lines = {
            image_id: [f"{n}. {text} ({' / '.join(ANSWERS)})" for n, text in enumerate(texts, 1)]
            for image_id, texts in entries.items()
        }
        answers, settings = self.ask(captions, lines)
        valid = [each or [] for each in answers]
        num_answered = [len(each) - each.count(NOT_SAID) for each in valid]
        counts = {
            "checklist_coverage": (num_answered, list(map(len, valid))),
            "checklist_precision": ([each.count(YES) for each in valid], num_answered),
        }
        details = {"checklist_answers": answers}
        return Scores.from_ratios(counts, settings=settings, details=details)

    def read(self, reply: Any, count: int) -> list[str]:
        """Return the answers to `count` questions."""
        answers = [str(reply[str(n)]).strip().casefold() for n in range(1, count + 1)]
        if not set(answers) <= set(ANSWERS):
            raise ValueError
        return answers


def read_checklist(path: Path) -> dict[ImageId, list[str]]:
    """Return {image id: questions} of a file. Raises UserError. The file has one of the formats:

    - {image id: [question]}
    - CAPEval's lines {id, img_path, ..._checklist: [{Question}]}. The result has the questions of
      an image under its id, its path and its file name
    """
    expected = f"{path}: expected {{image id: [question]}}, or the lines of CAPEval"
    try:
        checklist = _of_capeval(path) if path.suffix == ".jsonl" else dict(read_json(path))
    except (LookupError, TypeError, ValueError, AttributeError):
        raise UserError(expected) from None
    for image_id, questions in checklist.items():
        if not (questions and isinstance(questions, list) and set(map(type, questions)) == {str}):
            raise UserError(f"{expected}: image {image_id!r} has no questions")
    return checklist


def _of_capeval(path: Path) -> dict[str, list[str]]:
    """Return {name: questions} of CAPEval's lines, by all names of each image."""
    checklist = {}
    for _, row in parse_json_lines(read_text(path).split("\n"), path):
        lists = [row[name] for name in row if name.endswith("_checklist")]
        questions = [item["Question"] for each in lists for item in each]
        names = row["id"], row["img_path"], PurePosixPath(row["img_path"]).name
        checklist.update(dict.fromkeys(names, questions))
    return checklist
