"""Penn-Treebank tokens without Java: a small imitation of Stanford's PTBTokenizer.

It follows `PTBTokenizer -preserveLines -lowerCase` (CoreNLP 3.4.1) where captions go; what rarely
occurs in them (smileys, telephone numbers, markup with attributes) is left to the one in Java.
"""

import re

_ABBREVIATIONS = (
    "mr mrs ms dr st jr sr vs inc corp co ltd bros mt ave blvd rd sq rt bldg ft etc dept est tel "
    "univ assn assoc gov sen rep gen lt col capt cmdr sgt maj pvt cpl adm prof rev hon pres supt "
    "det insp msgr atty asst ph md esq jan feb mar apr jun jul aug sep sept oct nov dec mon tue "
    "tues wed thu thurs fri ala ariz calif colo conn ct dak fla ga ind kans? ky mich minn mo mont "
    "neb nev okla penn tenn va vt wisc? wyo alex wm jos al mfg"
).replace(" ", "|")
# These are words as well, and keep their full stop only with a capital.
_CAPITAL_ABBREVIATIONS = "Miss|Ark|Del|Ill|La|Mass|Ore|Pa|Tex|Wash|Az"
_CLITIC = r"'(?i:s|m|d|re|ve|ll)(?!\w)"
_LETTERS = r"[^\W\d_]+"
_WORD = r"[^\W_]+"

_TOKEN = re.compile(
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
    | {_LETTERS}\.(?=[,;:])                              # this stop ends no sentence
    | [A-Z]+&[A-Z]+
    | \d+:\d+(?=[ap]m\b)                                 # 10:30 | pm
    | \d+,\d+(?:-{_WORD})+                               # 3,000-foot
    | (?:(?<!\w)[+-])?(?:\d+(?:[.,:/-]\d+)*|\.\d+)(?![\w/-])
    | {_LETTERS}(?:(?!{_CLITIC}|'n')[.!?']{_LETTERS})+
    | {_WORD}(?:[-_/]{_WORD})*
    | [!?]{{2,}} | -- | \*+ | _+ | \#+
    | \S
    """,
    re.VERBOSE,
)

# Characters that Java's tokeniser writes differently. It drops what lies beyond the basic plane.
_SPELLING = {
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b`"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"'),
    **dict.fromkeys(map(ord, "\u2013\u2014\u2015"), "--"),
    **dict.fromkeys(map(ord, "\ufe0e\ufe0f\u200b\u200d"), " "),
    **{ord("…"): "...", ord("£"): "#", ord("€"): "$", ord("¢"): " cents "},
    **{ord("½"): " 1/2 ", ord("¼"): " 1/4 ", ord("¾"): " 3/4 "},
}
_BRACKETS = dict(zip("()[]{}", ["-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-"]))
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'"}


def tokens(caption: str) -> list[str]:
    """Return the lower-case tokens of one caption, punctuation still among them."""
    for entity, character in _ENTITIES.items():
        caption = caption.replace(entity, character)
    caption = re.sub("[\U00010000-\U0010ffff]", " ", caption.translate(_SPELLING))
    return [_BRACKETS.get(token, token.lower()) for token in _TOKEN.findall(caption)]
