"""Any file of captions is read, or is one line that names it.

Ranges: JSON, JSONL, CSV and Flickr's lines of up to 6 entries whose keys are those of the formats
or others and whose values are of any JSON type, numbers of up to 5,000 digits and lone surrogates
among them; the same with bytes taken out, and any bytes to 200.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioning.data.annotations import read_annotations
from captioning.data.caption_files import match_ids, read_predictions, read_references
from captioning.runtime.errors import UserError
from tests.fuzz.examples import fuzzed

any_text = st.text(st.characters(), max_size=12)
digits = st.sampled_from([1, 18, 30, 4300, 5000]).map(lambda count: "1" * count)
ids = st.integers(-3, 3) | st.sampled_from(["1", "01", "a", "\N{ARABIC-INDIC DIGIT THREE}"])
images = st.sampled_from(["a.jpg", "b_1.jpg", "c_01.png", "COCO_val2014_000000000042.jpg", ""])
images |= st.builds("{}.jpg".format, digits)
captions = st.sampled_from(
    ["a dog", "a cat", "", "x" * 200, "two\nlines", "\N{SNOWMAN}", 'a "quoted", one']
)
anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**30), 10**30) | any_text | digits,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
usual = {
    "image": images,
    "caption": captions,
    "captions": st.lists(captions, max_size=3),
    "image_id": ids,
    "filename": images,
    "filepath": st.just("val2014"),
    "split": st.sampled_from(["train", "val", "restval"]),
    "sentences": st.lists(st.fixed_dictionaries({"raw": captions}), max_size=3),
    "cocoid": ids,
    "imgid": ids,
    "id": ids,
    "file_name": images,
    "text": captions,
}


@st.composite
def entries(draw):
    """Rows that are right, but for what is drawn to be wrong."""
    shapes = [("image", "caption"), ("image", "caption", "image_id"), ("image_id", "caption")]
    shapes += [("image", "captions"), ("filename", "split", "sentences", "cocoid")]
    shapes += [("file_name", "text"), ("file_name", "id", "image_id", "caption")]
    shape = draw(st.sampled_from(shapes))
    rows = [{key: draw(usual[key]) for key in shape} for _ in range(draw(st.integers(0, 6)))]
    if draw(st.booleans()):
        return rows
    for row in rows:
        if draw(st.integers(0, 3)) == 0:
            row[draw(st.sampled_from(sorted(usual)) | any_text)] = draw(anything)
        if draw(st.integers(0, 9)) == 0 and row:
            del row[draw(st.sampled_from(sorted(row)))]
    if draw(st.integers(0, 9)) == 0:
        rows.append(draw(anything))
    return rows


def as_csv(rows):
    rows = [row for row in rows if isinstance(row, dict)]
    keys = sorted({key for row in rows for key in row})
    quoted = (
        ",".join('"' + str(row.get(key, "")).replace('"', '""') + '"' for key in keys)
        for row in rows
    )
    return "\n".join([",".join(keys), *quoted])


def as_lines(rows, form):
    """As in the files of Flickr8k and Flickr30k."""
    rows = [row for row in rows if isinstance(row, dict)]
    return "\n".join(
        form.format(r.get("image", ""), n, r.get("caption")) for n, r in enumerate(rows)
    )


@st.composite
def files(draw):
    """The ending and the bytes of a file."""
    ending = draw(st.sampled_from([".json", ".json", ".jsonl", ".csv", ".txt", ".token"]))
    if draw(st.integers(0, 9)) == 0:
        return ending, draw(st.binary(max_size=200))
    rows = draw(entries())
    if ending == ".csv":
        text = as_csv(rows)
    elif ending in (".txt", ".token"):
        flickr = [("{}#{}\t{}", ""), ("{}| {}| {}", "image_name| comment_number|\n")]
        form, head = draw(st.sampled_from(flickr))
        text = head + as_lines(rows, form)
    elif ending == ".jsonl":
        text = "\n".join(json.dumps(row, ensure_ascii=draw(st.booleans())) for row in rows)
    else:
        around = draw(st.sampled_from(["none", "none", "COCO", "by id", "any"]))
        document = {
            "none": rows,
            "COCO": {"annotations": rows, "images": rows},
            "by id": {str(n): r.get("captions") for n, r in enumerate(rows) if isinstance(r, dict)},
            "any": draw(anything),
        }[around]
        text = json.dumps(document)
    content = bytearray(text.encode("utf-8", "surrogatepass"))
    if content and draw(st.integers(0, 9)) == 0:
        start = draw(st.integers(0, len(content) - 1))
        del content[start : start + draw(st.integers(1, 20))]
    return ending, bytes(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("captions")


def or_one_line(read, path, *more):
    """What is read, or None after one line that names the file."""
    try:
        return read(path, *more)
    except UserError as error:
        line = str(error)
        assert line.startswith(str(path)) and len(line.splitlines()) == 1, repr(line)
        return None


@fuzzed(80)
@given(files(), st.sampled_from(["train", "val", None]))
def test_any_annotation_file(folder, file, split):
    ending, content = file
    path = folder / f"annotations{ending}"
    path.write_bytes(content)
    samples = or_one_line(read_annotations, path, split)
    if samples is None:
        return
    assert samples and len({sample.image_id for sample in samples}) == len(samples)
    for sample in samples:
        assert isinstance(sample.image, str) and sample.image
        assert sample.captions and all(text.strip() for text in sample.captions)
        assert type(sample.image_id) in (int, str)


@fuzzed(80)
@given(files(), files())
def test_any_predictions_and_references(folder, first, second):
    paths = [folder / f"predictions{first[0]}", folder / f"references{second[0]}"]
    for path, (_, content) in zip(paths, (first, second)):
        path.write_bytes(content)
    predictions = or_one_line(read_predictions, paths[0])
    references = or_one_line(read_references, paths[1])
    if predictions is not None:
        assert predictions and all(isinstance(text, str) for text in predictions.values())
    if references is not None:
        assert references and all(group for group in references.values())
        assert all(isinstance(text, str) for group in references.values() for text in group)
    if predictions and references:
        try:
            assert match_ids(predictions, references).keys() == predictions.keys()
        except UserError as error:
            assert len(str(error).splitlines()) == 1
