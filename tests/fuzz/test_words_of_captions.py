"""Any caption can be read for objects, parts of speech and loops, and any reply of a judge.

Ranges: any text, or words that tokenisers and rules trip over; replies of JSON's own characters.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioning.metrics.clair import question, read_reply
from captioning.metrics.detail import Detail, count
from captioning.metrics.objects_in_text import ObjectReader, by_rules
from captioning.metrics.repetition import loops, repeated
from tests.fuzz.examples import fuzzed

pytest.importorskip("textblob", reason="these metrics need TextBlob")

PIECES = (
    "dog dogs hot ' '' - -- \" `` a's wine-glasses mothers-in-law ... can't cannot ) / & &slash;"
)
captions = st.one_of(st.text(), st.lists(st.sampled_from(PIECES.split())).map(" ".join))
replies = st.one_of(st.text(), st.text(alphabet='{}[]"score:01e,.-nNaIf'))


@fuzzed(300)
@given(captions)
def test_any_caption_is_read(caption):
    reader = ObjectReader({"dog": "dog", "hot dog": "hot dog"}, by_rules())
    assert {mention.object for mention in reader.mentions(caption)} <= {"dog", "hot dog"}
    assert set(count(caption)) <= set(Detail().names)
    words = caption.split()
    assert loops([*words, *words, "x", "x", "x"]) and not loops(range(len(words)))
    assert repeated(words, 2) is None or 0 <= repeated(words, 2) < 100
    assert len(question(caption, [caption]).splitlines()) >= len(question("", [""]).splitlines())


@fuzzed(300)
@given(replies)
def test_any_reply_has_a_score_or_none(reply):
    found = read_reply(reply)
    assert found is None or 0 <= found.score <= 100
