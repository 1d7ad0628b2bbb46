"""Parses XML, changes it, writes it, and finds things in it."""

import xml.etree.ElementTree as ET
from xml.dom import minidom
from xml.sax.saxutils import escape

FEED = """<?xml version="1.0" encoding="utf-8"?>
<!-- a feed -->
<feed xmlns="http://example.com/feed" xmlns:x="http://example.com/x" version="1.1">
  <title>News &amp; more</title>
  <entry id="1" x:weight="3"><title>First</title><body><![CDATA[5 < 6]]></body></entry>
  <entry id="2"><title>Second ☃</title><link href="a?b=1&amp;c=2"/></entry>
  <entry id="3"><title/></entry>
</feed>
"""
NAMES = {"f": "http://example.com/feed", "x": "http://example.com/x"}

root = ET.fromstring(FEED)
print(root.tag, root.attrib, root.find("f:title", NAMES).text)
for entry in root.iterfind("f:entry", NAMES):
    weight = entry.get("{http://example.com/x}weight", "-")
    print(entry.get("id"), weight, repr(entry.findtext("f:title", namespaces=NAMES)), [child.tag.split("}")[1] for child in entry])
print(root.find("f:entry[@id='2']/f:link", NAMES).get("href"), root.findtext(".//f:body", namespaces=NAMES))

new = ET.SubElement(root, "{http://example.com/feed}entry", id="4")
ET.SubElement(new, "{http://example.com/feed}title").text = "Added <now>"
root.remove(root.find("f:entry[@id='3']", NAMES))
ET.register_namespace("", NAMES["f"])
ET.indent(root)
print(ET.tostring(root, encoding="unicode"))
ET.ElementTree(root).write("feed.xml", encoding="utf-8", xml_declaration=True)
print([(event, element.tag.split("}")[1]) for event, element in ET.iterparse("feed.xml", ["start"])][:4])

document = minidom.parseString("<a><b c='1'>t</b></a>")
print(document.getElementsByTagName("b")[0].toxml(), escape("<&>\""))
try:
    ET.fromstring("<a><b></a>")
except ET.ParseError as error:
    print(error, error.position)
