"""Data classes, enums, protocols and generics: the model that a small program starts with."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cached_property, lru_cache, singledispatch, total_ordering
from typing import NamedTuple, Protocol


class Kind(enum.Enum):
    TOOL = "tool"
    PART = "part"


class Flags(enum.IntFlag):
    FRAGILE = 1
    HEAVY = 2


class Place(NamedTuple):
    aisle: int
    shelf: str = "A"


@total_ordering
@dataclass
class Item:
    name: str
    kind: Kind
    count: int = 0
    flags: Flags = Flags(0)
    place: Place = field(default_factory=lambda: Place(1))

    def __post_init__(self):
        if self.count < 0:
            raise ValueError(f"{self.name}: {self.count} can't be in stock")

    def __lt__(self, other):
        return (self.kind.value, self.name) < (other.kind.value, other.name)


@dataclass(frozen=True, slots=True)
class Moved:
    item: str
    by: int


class Store(ABC):
    @abstractmethod
    def take(self, name: str, count: int) -> Moved: ...


class Counted(Protocol):
    count: int


class Shelf(Store):
    def __init__(self, *items: Item):
        self.items = {item.name: item for item in items}

    def take(self, name, count):
        item = self.items[name]
        self.items[name] = replace(item, count=item.count - count)
        return Moved(name, -count)

    @cached_property
    def total(self):
        return sum(item.count for item in self.items.values())


@singledispatch
def show(value):
    return repr(value)


@show.register
def _(value: Item):
    return f"{value.count} x {value.name} ({value.kind.value})"


@lru_cache(maxsize=None)
def ways(stairs):
    return 1 if stairs < 2 else ways(stairs - 1) + ways(stairs - 2)


shelf = Shelf(
    Item("saw", Kind.TOOL, 3, Flags.HEAVY),
    Item("vase", Kind.PART, 2, Flags.FRAGILE | Flags.HEAVY, Place(4, "C")),
    Item("bolt", Kind.PART, 500),
)
print(*(show(item) for item in sorted(shelf.items.values())), sep="\n")
print(shelf.take("bolt", 20), shelf.total, show(7))
print(astuple(shelf.items["vase"])[-1], asdict(shelf.items["bolt"])["place"])
for attempt in (lambda: shelf.take("bolt", 1000), Store, lambda: setattr(Moved("a", 1), "by", 2)):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__)
print(Flags.FRAGILE in shelf.items["vase"].flags, Kind("tool"), Kind["PART"].value, ways(90), ways.cache_info().misses)

match shelf.items["vase"]:
    case Item(name=name, place=Place(aisle, "C")) if aisle > 3:
        print(f"{name} is far away, in aisle {aisle}")
