"""Reads and writes captions in XMP sidecars.

A caption is stored as dc:description, which has a text per language (XMP specification, part 1).
"""

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from captioning.runtime.errors import UserError

EXTENSION = ".xmp"
DEFAULT = "x-default"  # the language tag of the text for readers that request no language
NAMES = {
    "x": "adobe:ns:meta/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
}
ROOT = f"{{{NAMES['x']}}}xmpmeta"
_IN_RDF = f"{{{NAMES['rdf']}}}"
RDF, RDF_DESCRIPTION, ABOUT = _IN_RDF + "RDF", _IN_RDF + "Description", _IN_RDF + "about"
ALT, ITEM = _IN_RDF + "Alt", _IN_RDF + "li"
DC_DESCRIPTION = f"{{{NAMES['dc']}}}description"
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_PACKET = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n{}\n<?xpacket end="w"?>\n'
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def has_description(sidecar: bytes, name: str) -> bool:
    """Return whether a sidecar has a caption, no matter which program wrote the caption.

    sidecar: the file's content. name: the file's name, for the error. Raises UserError if the
    content is not XML.
    """
    items = _parsed(sidecar, name).iterfind(f".//{DC_DESCRIPTION}//{ITEM}")
    return any((item.text or "").strip() for item in items)


def with_description(caption: str, language: str, sidecar: bytes, name: str) -> str:
    """Return the new content of a sidecar, which has the caption in `language` and as the default.

    All other metadata in the file is kept.

    - language: a tag such as "en" or "pt-BR"
    - sidecar: the present content of the file, or b""
    - name: the file's name, for the error

    Raises UserError if the present content is not XML.
    """
    for prefix, uri in (*NAMES.items(), *_namespaces(sidecar)):
        with suppress(ValueError):  # prefixes such as ns0 are reserved
            ElementTree.register_namespace(prefix, uri)
    root = _parsed(sidecar, name)
    rdf = next(root.iter(RDF), None)
    rdf = SubElement(root, RDF) if rdf is None else rdf
    element = next(rdf.iter(DC_DESCRIPTION), None)
    if element is None:
        described = rdf.find(RDF_DESCRIPTION)
        if described is None:
            described = SubElement(rdf, RDF_DESCRIPTION, {ABOUT: ""})
        element = SubElement(described, DC_DESCRIPTION)
    texts = {item.get(LANGUAGE): item.text for item in element.iter(ITEM)}
    caption = _NOT_IN_XML.sub("", caption)
    texts = {DEFAULT: caption, **texts, **dict.fromkeys((DEFAULT, language), caption)}
    element[:] = [Element(ALT)]
    for tag, text in texts.items():
        SubElement(element[0], ITEM, {LANGUAGE: tag or DEFAULT}).text = text
    return _PACKET.format(ElementTree.tostring(root, encoding="unicode"))


def _namespaces(sidecar: bytes) -> Iterator[tuple[str, str]]:
    """Yield the (prefix, URI) pairs of a sidecar's namespaces, so that the prefixes can be kept."""
    with suppress(ElementTree.ParseError):
        for _, pair in ElementTree.iterparse(io.BytesIO(sidecar), events=["start-ns"]):
            yield pair


def _parsed(sidecar: bytes, name: str) -> Element:
    if not sidecar.strip():
        return Element(ROOT)
    try:
        return ElementTree.fromstring(sidecar)
    except ElementTree.ParseError as error:
        raise UserError(f"{name}: not an XMP sidecar ({error}): remove or correct it") from None
