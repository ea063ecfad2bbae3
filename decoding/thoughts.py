"""Removes what a reasoning model writes before its answer."""

import re

# <think>, <seed:think>, [THINK], ◁think▷ ...
_TAG = r"(?i:[<◁]{0}(?:\w+:)?(?:think|thinking|thought|reasoning)[>▷]|\[{0}think\])"
_START, _END = (re.compile(_TAG.format(slash)) for slash in ("", "/"))
# What some models, such as GLM-4.1V, write around the answer.
_ANSWER_TAG = re.compile(r"(?i:</?(?:answer|conclusion)>)|<\|(?:begin|end)_of_box\|>")


def is_thought_tag(token: str) -> bool:
    """Return whether a token begins or ends thoughts."""
    return bool(_START.fullmatch(token) or _END.fullmatch(token))


def without_thoughts(content: str) -> str:
    """Return the text after a model's thoughts, which end with a tag such as </think>.

    The opening tag may be missing because it was part of the prompt, and the closing tag because
    the answer was cut. In the latter case nothing is returned. Tags around the answer are removed.
    """
    answer = _START.split(_END.split(content)[-1])[0]
    return _ANSWER_TAG.sub("", answer)
