"""Finds what matters in a web server's log with regular expressions."""

import re
from collections import Counter

LOG = """\
10.0.0.1 - - [12/Mar/2026:06:25:24 +0000] "GET /index.html HTTP/1.1" 200 5120
10.0.0.2 - alice [12/Mar/2026:06:25:25 +0000] "POST /api/v1/items?id=7 HTTP/1.1" 201 87
10.0.0.1 - - [12/Mar/2026:06:25:29 +0000] "GET /missing HTTP/2" 404 0
garbage that no pattern matches
10.0.0.3 - bob [12/Mar/2026:06:26:01 +0000] "DELETE /api/v1/items/9 HTTP/1.1" 500 312
"""

LINE = re.compile(
    r"""
    ^(?P<host>\S+)\s-\s(?P<user>\S+)\s
    \[(?P<when>[^\]]+)\]\s
    "(?P<method>[A-Z]+)\s(?P<path>[^ ?"]+)(?:\?(?P<query>[^ "]*))?\sHTTP/[\d.]+"\s
    (?P<status>\d{3})\s(?P<bytes>\d+)$
    """,
    re.VERBOSE,
)

seen, unread = [], 0
for line in LOG.splitlines():
    if match := LINE.match(line):
        seen.append(match.groupdict())
    else:
        unread += 1

for entry in seen:
    print(entry["host"], entry["method"], entry["path"], entry["query"], entry["status"])
print(Counter(entry["status"][0] + "xx" for entry in seen).most_common(), "unread:", unread)

text = "Call +49 (30) 1234-567 or 030/7654321; mail a.b+c@example.co.uk, not @nobody. Total: €1.234,56 or $9.99."
print(re.findall(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", text))
print(re.findall(r"[€$]\d+(?:[.,]\d+)*", text))
print(re.sub(r"\b(\d{2,3})(?=\d{3}\b)", r"\1 ", text))
print(re.split(r"[;,.]\s+", text))
print(re.sub(r"(?<!^)(?=[A-Z])", "_", "camelCaseToSnakeCase").lower())
print([m.span() for m in re.finditer(r"(?i)o\w", text)][:5])
print(re.fullmatch(r"(?:(\d+)|(\w+))+", "ab12cd").groups())
print(re.findall(r"(?P<quote>['\"])(.*?)(?P=quote)", """say "it's" and 'so'"""))
