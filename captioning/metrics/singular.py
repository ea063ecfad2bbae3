"""English nouns in the singular, in two ways: by rules, as CHAIR was published, or by WordNet."""

from functools import cache
from typing import Callable, NamedTuple

from captioning.runtime.errors import UserError

# TextBlob keeps the rules of the library `pattern`, 3.6 of which CHAIR names, and has mended these.
_AS_PUBLISHED = {"airbuses": "airbus", "collies": "collies", "doggies": "doggies"}
# Where the shortest of WordNet's lemmas, a work force and a duct, is not what captions mean.
_NOT_SHORTEST = {"men": "man", "vases": "vase"}


class Singular(NamedTuple):
    """what: the way to the singular, for people; of: a lower-case word to its singular."""

    what: str
    of: Callable[[str], str]


def by_rules() -> Singular:
    """By pattern's rules, which know no words: "bus" becomes "bu", "glass" becomes "glas".

    Raises UserError without TextBlob.
    """
    try:
        from textblob.en.inflect import singularize
    except ImportError:
        raise UserError("chair needs TextBlob: pip install textblob") from None

    @cache
    def singular(word: str) -> str:
        return singularize(word, custom=_AS_PUBLISHED)

    return Singular("pattern's rules", singular)


def by_wordnet() -> Singular:
    """The shortest lemma that WordNet has for the word as a noun; by rules where it has none.

    Raises UserError without TextBlob, or nltk's data.
    """
    rules = by_rules()
    from nltk.corpus import wordnet  # TextBlob needs it as well
    from nltk.stem import WordNetLemmatizer

    lemmatize = WordNetLemmatizer().lemmatize
    try:
        lemmatize("dogs")
    except (LookupError, OSError) as error:
        reason = "are damaged" if isinstance(error, OSError) else "are not there"
        raise UserError(
            f"singular: wordnet: nltk's data {reason}: run python -m nltk.downloader wordnet, or "
            "put corpora/wordnet into a folder that NLTK_DATA names"
        ) from None

    @cache
    def singular(word: str) -> str:
        if word in _NOT_SHORTEST:
            return _NOT_SHORTEST[word]
        return lemmatize(word) if wordnet.morphy(word, "n") else rules.of(word)

    return Singular("WordNet's lemmas", singular)


SINGULARS = {"pattern": by_rules, "wordnet": by_wordnet}
