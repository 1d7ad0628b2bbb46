"""Takes links, headings and a table out of a page; URLs and forms besides."""

import html
from html.parser import HTMLParser
from urllib.parse import parse_qs, quote, unquote, urlencode, urljoin, urlsplit

PAGE = """<!doctype html><html><head><title>Shop &mdash; list</title><script>if (a < b) { x("<p>") }</script></head>
<body><h1>Our <em>things</em></h1><p>See <a href="/about?x=1&amp;y=2#top">about</a> and <a href='http://other.example/'>other</a>.
<table><tr><th>Name<th>Price</tr><tr><td>Saw</td><td>&euro;12&nbsp;net</td></tr><tr><td>Nail &amp; co</td><td>0.02</td></tr></table>
<img src=logo.png alt="a > b"><br/></body></html>"""


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.rows, self.headings, self.path = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.links.append(dict(attrs)["href"])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "h1":
            self.headings.append("")
        if tag not in ("img", "br"):
            self.path.append(tag)

    def handle_endtag(self, tag):
        if tag in self.path:
            del self.path[len(self.path) - 1 - self.path[::-1].index(tag) :]

    def handle_data(self, data):
        if "script" in self.path:
            return
        if self.path and self.path[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif "h1" in self.path:
            self.headings[-1] += data


reader = Reader()
reader.feed(PAGE)
reader.close()
print(reader.headings, reader.links)
for row in reader.rows:
    print([cell.replace("\xa0", " ") for cell in row])
base = "http://shop.example/list/page.html"
for link in reader.links:
    parts = urlsplit(urljoin(base, link))
    print(parts.scheme, parts.netloc, parts.path, parse_qs(parts.query), parts.fragment)
print(html.escape('<a href="x">&</a>'), html.unescape("&lt;&#9731;&eacute;&notit;"))
print(urlencode({"q": "ä b", "n": [1, 2]}, doseq=True), quote("a/b c?"), unquote("%E2%98%83"))
