"""Any file of captions is read, or is one line that names it.

Ranges: up to 4 images in each format of caption_formats.py and in rows; values replaced by any of
JSON's, numbers of up to 5,000 digits and lone surrogates among them; fields left out; bytes taken
out; and any bytes to 200.
"""

import json

from hypothesis import given
from hypothesis import strategies as st

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import read_predictions, read_references, with_references
from captioning.runtime.errors import UserError
from tests.captioning.data.caption_formats import FILES, coco, flat, karpathy
from tests.fuzz.examples import fuzzed

any_text = st.text(st.characters(), max_size=12)
digits = st.sampled_from([1, 18, 30, 4300, 5000]).map(lambda count: "1" * count)
ids = st.integers(-3, 3) | st.sampled_from(["1", "01", "a", "\N{ARABIC-INDIC DIGIT THREE}"])
images = st.sampled_from(["a.jpg", "b_1.jpg", "c_01.png", "COCO_val2014_000000000042.jpg", ""])
images |= st.builds("{}.jpg".format, digits)
texts = st.sampled_from(["a dog", "", "x" * 200, "two\nlines", "\N{SNOWMAN}", 'a "quoted", one'])
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**30), 10**30) | any_text | digits,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
rarely = st.integers(0, 29).map(lambda number: number == 0)


def damaged(draw, value):
    """The value, with parts replaced or left out."""
    if draw(rarely):
        return draw(anything)
    if isinstance(value, dict):
        return {k: damaged(draw, v) for k, v in value.items() if not draw(rarely)}
    return [damaged(draw, part) for part in value] if isinstance(value, list) else value


@st.composite
def files(draw):
    """The ending and the bytes of a file."""
    captions = draw(st.dictionaries(images, st.lists(texts, min_size=1, max_size=3), max_size=4))
    rows = [{"image": i, "caption": text, "image_id": draw(ids)} for i, _, text in flat(captions)]
    split_of = {image: draw(st.sampled_from(["train", "val", "restval"])) for image in captions}
    document = draw(st.sampled_from([rows, karpathy(captions, split_of), coco(captions), captions]))
    name = draw(st.sampled_from([*FILES, "a.json", "a.json", "a.jsonl", "any"]))
    if name == "any":
        return draw(st.sampled_from([".json", ".jsonl", ".csv"])), draw(st.binary(max_size=200))
    if name in FILES:
        text = FILES[name](captions or {"a.jpg": [""]})
    else:
        document = damaged(draw, document) if draw(st.booleans()) else document
        lines = document if name == "a.jsonl" and isinstance(document, list) else [document]
        text = "\n".join(json.dumps(line, ensure_ascii=draw(st.booleans())) for line in lines)
    content = text.encode("utf-8", "surrogatepass")
    if draw(rarely):
        start, count = draw(st.integers(0, len(content))), draw(st.integers(1, 20))
        content = content[:start] + content[start + count :]
    return name[name.rindex(".") :], content


@fuzzed(40)
@given(files(), files(), st.sampled_from(["train", "val", None]))
def test_any_file_is_read_or_is_one_line(tmp_path_factory, first, second, split):
    folder = tmp_path_factory.getbasetemp()

    def read(reader, file, *more):
        """What is read, or None after one line that names the file."""
        path = folder / f"captions{file[0]}"
        path.write_bytes(file[1])
        try:
            return reader(path, *more)
        except UserError as error:
            assert str(error).startswith(str(path)) and len(str(error).splitlines()) == 1, error
            return None

    samples = read(read_annotations, first, split)
    if samples is not None:
        assert samples and len({sample.image_id for sample in samples}) == len(samples)
        assert all(isinstance(s.image, str) and s.image and s.captions for s in samples)
        assert all(text.strip() for sample in samples for text in sample.captions)
        assert {type(sample.image_id) for sample in samples} <= {int, str}
    predictions, references = read(read_predictions, first), read(read_references, second)
    if predictions is not None:
        assert predictions and all(isinstance(text, str) for text in predictions.values())
    if references is not None:
        assert references and all(references.values())
        assert all(isinstance(text, str) for group in references.values() for text in group)
    if predictions and references:
        try:
            kept, lacking = with_references(predictions, references)
            assert {*kept, *lacking} == {*predictions}
        except UserError as error:
            assert len(str(error).splitlines()) == 1
