"""The clean-up that BLIP gives a caption before it is tokenised."""

import re

_PUNCTUATION = re.compile(r"[.!\"()*#:;~]")
_WHITE_SPACE_RUN = re.compile(r"\s{2,}")


def preprocess_caption(text: str, max_words: int = 30) -> str:
    """Return `text` in lower case, without the characters . ! " ( ) * # : ; ~, cut to `max_words`.

    The characters become spaces, a run of white space becomes one space, and words are what stands
    between single spaces: commas, apostrophes and hyphens stay.
    """
    text = _PUNCTUATION.sub(" ", text.lower())
    text = _WHITE_SPACE_RUN.sub(" ", text).rstrip("\n").strip(" ")
    return " ".join(text.split(" ")[:max_words])
