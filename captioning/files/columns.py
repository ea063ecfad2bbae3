"""Names the columns of rows with images, captions and ids, the same for every kind of file."""

import os
import re
from collections.abc import Collection
from typing import Any, Optional

from captioning.runtime.errors import UserError

# {key of a row: names of its column, in any case}. The first name with a value of the key's type
# counts.
COLUMNS = {
    "image": (
        *("image", "file_name", "path", "filename", "filepath"),
        *("image_path", "image_name", "file"),
    ),
    "captions": ("captions", "caption", "text", "comment"),
    "references": ("references",),  # human captions beside a prediction
    "image_id": ("image_id", "cocoid", "imgid", "id"),
}
# {column of a conversation: keys of a turn: its role, its text}
CHATS = {"conversations": ("from", "value"), "messages": ("role", "content")}
ROLES = {"human": "prompt", "user": "prompt", "gpt": "caption", "assistant": "caption"}
_IMAGE_TOKEN = re.compile(r"<\|?image\|?>")  # the place of an image in a prompt
_COLUMN = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")  # {column} in a prompt; double braces are text


class Row(dict):
    """The columns of a row, and those of COLUMNS as far as the row has them.

    image: a file, by its `normal_name`. captions, references: lists of texts. image_id: an int or a
    str. The attribute `where` is the file and the place in it, for errors, such as "a.csv: line 3".
    """

    where: str


def row_of(columns: Any, where: str, needs: Collection[str] = ()) -> Row:
    """Return the row of an object, or of a file name.

    needs: keys that the row must have. Raises UserError.
    """
    columns = {"image": columns} if isinstance(columns, str) else columns
    if not isinstance(columns, dict):
        raise UserError(f"{where} is not an object: expected {{image, caption}}")
    for name in CHATS:
        if isinstance(columns.get(name), list):
            columns = {**_conversation(columns, name, where), **columns}
    row = Row(columns)
    row.where = where
    values = {**{name.lower(): value for name, value in columns.items()}, **columns}
    for key, names in COLUMNS.items():
        typed = (_typed(key, values.get(name)) for name in names)
        row[key] = next((value for value in typed if value is not None), None)
        if row[key] is None:
            del row[key]
            if key in needs:
                found = "" if {*names} & {*values} else ", ".join(map(repr, [*columns][:5]))
                names, found = ", ".join(names), found and f" (found {found})"
                raise UserError(f"{where} has no {key}: expected text in a column {names}{found}")
    image_id = values.get("image_id")
    if image_id not in (None, "") and "image_id" not in row:
        raise UserError(f"{where} has image_id {image_id!r}: expected an integer or a string")
    return row


def _conversation(columns: dict, name: str, where: str) -> dict[str, str]:
    """Return the prompt and the caption of the conversation in the column `name`, and its image.

    Image placeholders are taken off. Raises UserError for several turns of one role, and for
    several `images`.
    """
    role_key, text_key = CHATS[name]
    turns = {}
    try:
        for turn in columns[name]:
            text = turn[text_key]
            if isinstance(text, list):
                text = "".join(part["text"] for part in text if part["type"] == "text")
            turns[ROLES[turn[role_key]]] = _IMAGE_TOKEN.sub("", text).strip()
    except (KeyError, TypeError):
        turns = None
    if turns is None or len(turns) < len(columns[name]):
        raise UserError(
            f"{where}: {name} is not one turn of the user and one of the assistant: keep one "
            f"{{{role_key}, {text_key}}} of each"
        )
    images = columns.get("images", [])
    if len(images) > 1:
        raise UserError(f"{where} has {len(images)} images: keep one")
    return dict(turns, image=images[0]) if images else turns


def _typed(key: str, value: Any) -> Any:
    """Return the value of a key of COLUMNS; None for a value of another type."""
    if key == "image_id":
        return value if type(value) in (int, str) and value != "" else None  # true is no id
    if key == "image":
        is_name = isinstance(value, str) and value
        return normal_name(os.path.expanduser(value)) if is_name else None
    texts = [value] if isinstance(value, str) else value
    are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    return texts if are_texts else None


def normal_name(name: str) -> str:
    """Return the one name of a path or address that can be written in several ways."""
    scheme, separator, place = name.partition("://")
    if separator:
        return f"{scheme}://{'/'.join(part for part in place.split('/') if part not in ('', '.'))}"
    return os.path.normpath(name)


def prompt_of(row: Row, template: Optional[str] = None) -> Optional[str]:
    """Return the prompt of a row, or None. Raises UserError.

    template: the value of --prompt. Without a template, the prompt is the row's column `prompt`. In
    a template such as "a {colour} bird", {colour} is replaced by the row's column `colour`. For a
    template without columns the result is None: the caller uses the template for all images.
    """
    if template is None:
        prompt = row.get("prompt") or ""
        if not isinstance(prompt, str):
            raise UserError(f"{row.where} has the prompt {prompt!r}: expected text")
        return prompt.strip() or None
    if not _COLUMN.search(template):
        return None
    try:
        return _COLUMN.sub(lambda match: str(row[match[1]]), template)
    except KeyError as error:
        names = ", ".join(map(str, row))
        raise UserError(f"{row.where} has no column {error} of --prompt, only {names}") from None
