"""Reads and writes captions in XMP sidecars.

A caption is stored as dc:description, which has a text per language (XMP specification, part 1).
"""

import io
import re
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
TAGS = (RDF, RDF_DESCRIPTION, DC_DESCRIPTION, ALT)  # from the root to the texts
LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_PACKET = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>\n{}\n<?xpacket end="w"?>\n'
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
for _prefix, _uri in NAMES.items():
    ElementTree.register_namespace(_prefix, _uri)


def has_description(sidecar: bytes, name: str) -> bool:
    """Return whether a sidecar has a caption, no matter which program wrote the caption.

    sidecar: the file's content. name: the file's name, for the error. Raises UserError if the
    content is not XML.
    """
    items = _parsed(sidecar, name).iterfind(f".//{DC_DESCRIPTION}//{ITEM}")
    return any((item.text or "").strip() for item in items)


def with_description(caption: str, sidecar: bytes, name: str) -> str:
    """Return the new content of a sidecar, which has the caption as its default description.

    All other metadata in the file is kept, also descriptions in other languages.

    - sidecar: the present content of the file, or b""
    - name: the file's name, for the error

    Raises UserError if the present content is not XML.
    """
    root = _parsed(sidecar, name)
    described = next(root.iter(DC_DESCRIPTION), None)
    element = root if described is None else described
    for tag in TAGS if described is None else TAGS[-1:]:
        found = next(element.iter(tag), None)
        attributes = {ABOUT: ""} if tag == RDF_DESCRIPTION else {}
        element = SubElement(element, tag, attributes) if found is None else found
    item = next((item for item in element if item.get(LANGUAGE) == DEFAULT), None)
    if item is None:
        item = Element(ITEM, {LANGUAGE: DEFAULT})
        element.insert(0, item)
    item.text = _NOT_IN_XML.sub("", caption)
    return _PACKET.format(ElementTree.tostring(root, encoding="unicode"))


def _parsed(sidecar: bytes, name: str) -> Element:
    """Return the root of a sidecar, and register its namespaces, so that their prefixes stay."""
    if not sidecar.strip():
        return Element(ROOT)
    try:
        parser = ElementTree.iterparse(io.BytesIO(sidecar), events=["start-ns"])
        for _, (prefix, uri) in parser:
            with suppress(ValueError):  # prefixes such as ns0 are reserved
                ElementTree.register_namespace(prefix, uri)
        return parser.root
    except ElementTree.ParseError as error:
        raise UserError(f"{name}: not an XMP sidecar ({error}): remove or correct it") from None
