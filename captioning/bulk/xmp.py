"""XMP sidecars: the caption as dc:description, a text per language (XMP specification, part 1)."""

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from captioning.runtime.errors import UserError

EXTENSION = ".xmp"
DEFAULT = "x-default"  # the language for readers that request none
NAMES = {
    "x": "adobe:ns:meta/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
}
ROOT, ABOUT = f"{{{NAMES['x']}}}xmpmeta", f"{{{NAMES['rdf']}}}about"
RDF, PART = f"{{{NAMES['rdf']}}}RDF", f"{{{NAMES['rdf']}}}Description"
ALT, ITEM = f"{{{NAMES['rdf']}}}Alt", f"{{{NAMES['rdf']}}}li"
DESCRIPTION = f"{{{NAMES['dc']}}}description"
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_PACKET = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n{}\n<?xpacket end="w"?>\n'
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def has_description(sidecar: bytes, name: str) -> bool:
    """Return whether a sidecar, perhaps of another program, has a caption. Raises UserError."""
    items = _parsed(sidecar, name).iterfind(f".//{DESCRIPTION}//{ITEM}")
    return any((item.text or "").strip() for item in items)


def with_description(caption: str, language: str, sidecar: bytes, name: str) -> str:
    """Return the text of a sidecar that has the caption, in `language` and as the default.

    language: such as "en" or "pt-BR". sidecar: its present content, or b""; everything else in it
    is kept. name: its name, for the error. Raises UserError if it is not XMP.
    """
    for prefix, uri in (*NAMES.items(), *_namespaces(sidecar)):
        with suppress(ValueError):  # prefixes such as ns0 are reserved
            ElementTree.register_namespace(prefix, uri)
    root = _parsed(sidecar, name)
    rdf = next(root.iter(RDF), None)
    rdf = SubElement(root, RDF) if rdf is None else rdf
    found = next(rdf.iter(DESCRIPTION), None)
    if found is None:
        part = rdf.find(PART)
        part = SubElement(rdf, PART, {ABOUT: ""}) if part is None else part
        found = SubElement(part, DESCRIPTION)
    texts = {item.get(LANGUAGE): item.text for item in found.iter(ITEM)}
    caption = _NOT_IN_XML.sub("", caption)
    texts = {DEFAULT: caption, **texts, **dict.fromkeys((DEFAULT, language), caption)}
    found[:] = [Element(ALT)]
    for tag, text in texts.items():
        SubElement(found[0], ITEM, {LANGUAGE: tag or DEFAULT}).text = text
    return _PACKET.format(ElementTree.tostring(root, encoding="unicode"))


def _namespaces(sidecar: bytes) -> Iterator[tuple[str, str]]:
    """Yield the (prefix, URI) pairs of a sidecar, so that its prefixes can be kept."""
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
