"""Walks the nested JSON that an API might answer with, and reshapes it."""

import json

ANSWER = """
{"page": 1, "items": [
  {"id": 7, "name": "Zo\\u00eb", "tags": ["a", "b"], "price": {"amount": "19.90", "currency": "EUR"}},
  {"id": 9, "name": "Bo", "tags": [], "price": null},
  {"id": 11, "name": "L\\u00fc \\ud83d\\ude00", "tags": ["b"], "price": {"amount": "5", "currency": "USD"}}
], "next": null, "ratio": 1e-7, "big": 123456789012345678901234567890}
"""


def flatten(value, path=""):
    """Yields every leaf with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for at, inner in enumerate(value):
            yield from flatten(inner, f"{path}[{at}]")
    else:
        yield path, value


answer = json.loads(ANSWER)
for path, value in flatten(answer):
    print(f"{path} = {value!r}")

by_tag = {}
for item in answer["items"]:
    for tag in item["tags"]:
        by_tag.setdefault(tag, []).append(item["name"])
print(json.dumps(by_tag, ensure_ascii=False, sort_keys=True, indent=2))
print(json.dumps(answer["items"][2], separators=(",", ":")))

with open("items.jsonl", "w", encoding="utf-8") as file:
    for item in answer["items"]:
        file.write(json.dumps(item, ensure_ascii=False) + "\n")
with open("items.jsonl", encoding="utf-8") as file:
    print(sum(1 for line in file if json.loads(line)["price"]))

try:
    json.loads('{"a": [1, 2,, 3]}')
except json.JSONDecodeError as error:
    print(f"{error.msg} at line {error.lineno} column {error.colno}")
