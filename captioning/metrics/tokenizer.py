"""Splits captions into lower-case tokens for metrics, by PTBTokenizer or an imitation in Python.

PTBTokenizer is a Java program. The imitation returns the same tokens as `PTBTokenizer
-preserveLines -lowerCase` (CoreNLP 3.4.1), except for smileys, telephone numbers and markup with
attributes, which are rare in captions.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice

import regex  # its \w includes vowel signs and combining accents, as in Java

from captioning.metrics.java import JavaError, jar, run_java

# Languages without spaces between words. Their characters are counted instead.
UNSPACED = ("zh", "ja", "th", "lo", "km", "my")
# A character with its accents and vowel signs, or a word or number in Latin letters.
_CHARACTER = regex.compile(r"[\p{Latin}\p{Nd}]+|[^\s\p{P}]\p{M}*")

_PROGRAM = "edu.stanford.nlp.process.PTBTokenizer"
_OPTIONS = ("-encoding", "UTF-8", "-preserveLines", "-lowerCase")

# The tokens that the COCO evaluation removes. COCO's list also contains brackets such as -LRB-, but
# the tokens are in lower case, so that COCO does not remove -lrb-. Published scores depend on this,
# so that brackets are not removed here, either.
_PUNCTUATION = {*"'`\".?!,:-;", "''", "``", "--", "..."}

_ABBREVIATIONS = (
    "mr mrs ms dr st jr sr vs inc corp co ltd bros mt ave blvd rd sq rt bldg ft etc dept est tel "
    "univ assn assoc gov sen rep gen lt col capt cmdr sgt maj pvt cpl adm prof rev hon pres supt "
    "det insp msgr atty asst ph md esq jan feb mar apr jun jul aug sep sept oct nov dec mon tue "
    "tues wed thu thurs fri ala ariz calif colo conn ct dak fla ga ind kans? ky mich minn mo mont "
    "neb nev okla penn tenn va vt wisc? wyo alex wm jos al mfg"
).replace(" ", "|")
# Abbreviations that are also words. They keep the full stop only if they are capitalised.
_CAPITAL_ABBREVIATIONS = "Miss|Ark|Del|Ill|La|Mass|Ore|Pa|Tex|Wash|Az"
_CLITIC = r"'(?i:s|m|d|re|ve|ll)(?!\w)"
_LETTERS = r"[^\W\d_]+"
_WORD = r"[^\W_]+"

_TOKEN = regex.compile(
    rf"""
      </?\w+/?>                                          # markup, the <unk> of a vocabulary
    | (?i:https?://|www\.)\S*[\w/]
    | [\w.+-]{{1,64}}@[\w-]+(?:\.[\w-]+)+
    | [\#@][A-Za-z]\w*
    | {_CLITIC}
    | (?i:n't)(?!\w)
    | {_LETTERS}?(?=(?i:n't)(?!\w))                      # do | n't
    | '(?:(?i:n)(?:'|(?!\w))|\d\ds?(?!\w)|(?i:em|cause)(?!\w))   # rock 'n' roll, the '90s
    | (?i:can(?=not\b)|gon(?=na\b)|wan(?=na\b)|got(?=ta\b)|gim(?=me\b)|lem(?=me\b)|y'(?=all\b))
    | '(?i:t(?=is\b|was\b))
    | [A-Za-z](?:\.[A-Za-z])+\.?(?!\w) | [A-HJ-TV-Za-z]\.(?!\w)           # initials: U.S., T.V, L.
    | (?:(?i:{_ABBREVIATIONS})|{_CAPITAL_ABBREVIATIONS})\.(?!\w)
    | (?i:nos?|pp|figs?|op|art|ca)\.(?=\s?\d)           # No. 5
    | {_LETTERS}\.(?=[,;:])                              # a stop within a sentence
    | [A-Z]+&[A-Z]+
    | \d+:\d+(?=[ap]m\b)                                 # 10:30 | pm
    | \d+,\d+(?:-{_WORD})+                               # 3,000-foot
    | (?:(?<!\w)[+-])?(?:\d+(?:[.,:/-]\d+)*|\.\d+)(?![\w/-])
    | {_LETTERS}(?:(?!{_CLITIC}|'n')[.!?']{_LETTERS})+
    | {_WORD}(?:[-_/]{_WORD})*
    | [!?]{{2,}} | -- | \*+ | _+ | \#+
    | \S
    """,
    regex.VERBOSE,
)

# Characters that PTBTokenizer replaces. It drops characters above U+FFFF, see `_imitate`.
_SPELLING = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2013\u2014\u2015", "--"),
        **dict.fromkeys("\ufe0e\ufe0f\u200b\u200d", " "),
        **{
            "…": "...",
            "£": "#",
            "€": "$",
            "¢": " cents ",
            "½": " 1/2 ",
            "¼": " 1/4 ",
            "¾": " 3/4 ",
        },
    }
)
_BRACKETS = dict(zip("()[]{}", ["-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-"]))
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'"}


def tokenize(
    captions: Mapping[Hashable, Sequence[str]], language: str = "en"
) -> tuple[dict[Hashable, list[str]], str]:
    """Return the captions as tokens joined by spaces, and the name of the tokeniser that was used.

    captions: {any id: list of captions}; the result has the same ids and numbers of captions. A
    caption may contain line breaks. It may be empty or have no tokens; then the result is "".
    Without Java, or if it fails, the imitation is used. The tokens of UNSPACED are characters.
    """
    if language in UNSPACED:
        return {key: list(map(characters, group)) for key, group in captions.items()}, "characters"
    # PTBTokenizer reads one caption per line. `split` removes all characters that end lines.
    lines = [" ".join(caption.split()) for group in captions.values() for caption in group]
    try:
        tokenized, tokenizer = _java_tokens(lines), "PTBTokenizer"
    except JavaError as error:
        reason = str(error).partition(":")[0]
        tokenized, tokenizer = map(_imitate, lines), f"regex ({reason})"
    texts = map(_join_words, tokenized)
    return {key: list(islice(texts, len(group))) for key, group in captions.items()}, tokenizer


def characters(caption: str) -> str:
    """Return the characters of a caption, and its words in Latin letters, joined by spaces."""
    return " ".join(_CHARACTER.findall(caption.lower()))


def imitated_tokens(caption: str, language: str = "en") -> str:
    """Return what `tokenize` returns for one caption, without Java."""
    if language in UNSPACED:
        return characters(caption)
    return _join_words(_imitate(" ".join(caption.split())))


def _join_words(tokens: Iterable[str]) -> str:
    """Return the tokens joined by spaces, without punctuation."""
    return " ".join(token for token in tokens if token not in _PUNCTUATION)


def _java_tokens(lines: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each line, by the PTBTokenizer in pycocoevalcap. Raises JavaError.

    pycocoevalcap's Python class is not used, because it writes to the installation folder.
    """
    program = ["-cp", jar("tokenizer/stanford-corenlp-3.4.1.jar"), _PROGRAM, *_OPTIONS]
    text = "".join(line + "\n" for line in lines)
    output, _ = run_java(*program, text=text, seconds=120 + 0.01 * len(lines))
    tokenized = [line.rstrip().split(" ") for line in output.split("\n")[:-1]]
    if len(tokenized) != len(lines):
        raise JavaError(f"Java gave {len(tokenized)} lines for {len(lines)} captions")
    return tokenized


def _imitate(caption: str) -> list[str]:
    """Return the lower-case tokens of one caption, including punctuation."""
    for entity, character in _ENTITIES.items():
        caption = caption.replace(entity, character)
    caption = regex.sub("[\U00010000-\U0010ffff]", " ", caption.translate(_SPELLING))
    return [_BRACKETS.get(token, token.lower()) for token in _TOKEN.findall(caption)]
