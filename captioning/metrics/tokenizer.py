"""Captions to the lower-case tokens that caption metrics count: PTBTokenizer, or its imitation."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from captioning.metrics.java import JavaError, java_process, java_version
from captioning.metrics.ptb_regex import tokens

# What the COCO evaluation removes. It means to remove brackets too, but looks for -LRB- among
# lower-case tokens: -lrb- stays, here as in every published score.
_PUNCTUATION = frozenset(
    ["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", "-", "--", "...", ";"]
)


def tokenize(
    captions: Mapping[Hashable, Sequence[str]],
) -> tuple[dict[Hashable, list[str]], str]:
    """Return the captions as tokens joined by spaces, and the name of the tokeniser that was used.

    captions: {any id: list of captions}; the result has the same ids and as many captions each.
    A caption may be empty, or hold line breaks, and may have no token left. Without Java the
    imitation in `ptb_regex` is used, and the name says so.
    """
    # Java reads a caption a line, and ends a line at characters that Python knows as spaces.
    lines = [" ".join(caption.split()) for group in captions.values() for caption in group]
    tokenized, tokenizer = _tokenize_lines(lines)
    kept = iter([" ".join(t for t in line if t not in _PUNCTUATION) for line in tokenized])
    return {key: [next(kept) for _ in group] for key, group in captions.items()}, tokenizer


def _tokenize_lines(lines):
    """Return the tokens of each line, and the name of the tokeniser."""
    try:
        java_version()
    except JavaError:
        return map(tokens, lines), "regex (no Java)"
    try:
        return _java_tokens(lines), "PTBTokenizer"
    except JavaError as error:
        return map(tokens, lines), f"regex ({error})"


def _java_tokens(lines):
    """Return the list of tokens of each line, from the PTBTokenizer that pycocoevalcap ships.

    pycocoevalcap's own class writes its input into the folder where it is installed.
    """
    try:
        from pycocoevalcap.tokenizer import ptbtokenizer
    except ImportError as error:
        raise JavaError("pycocoevalcap is not installed") from error
    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    command = ["-cp", jar, "edu.stanford.nlp.process.PTBTokenizer"]
    options = ["-encoding", "UTF-8", "-preserveLines", "-lowerCase"]
    with java_process([*command, *options], time_limit=120 + 0.01 * len(lines)) as (process, _):
        output, _ = process.communicate("".join(line + "\n" for line in lines))
        tokenized = [line.rstrip().split(" ") for line in output.split("\n")[:-1]]
        if process.returncode == 0 and len(tokenized) != len(lines):
            raise ValueError(f"{len(tokenized)} lines for {len(lines)} captions")
    return tokenized
