"""Counters out of the text that Prometheus reads."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from typing import Final

LINE: Final = re.compile(r"^(?P<name>[a-zA-Z_:]+)\{(?P<labels>.*)\} (?P<value>\S+)")
LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION"})


def _samples(lines: Iterable[str], name: str) -> Iterator[tuple[dict[str, str], int]]:
    for line in lines:
        # Cheap first: an API server has tens of thousands of lines.
        if line.startswith(name) and (found := LINE.match(line)) and found["name"] == name:
            yield dict(LABEL.findall(found["labels"])), int(float(found["value"]))


def calls(text: str) -> Counter[str]:
    """The requests that a client of the API server has made, by verb: client-go's metric, whose name ours has too."""
    counted: Counter[str] = Counter()
    for labels, value in _samples(text.splitlines(), "rest_client_requests_total"):
        counted[labels["method"]] += value
    return counted


def writes(text: str) -> Counter[str]:
    """The writing requests that an API server has answered to anybody, as `POST pods/binding`."""
    counted: Counter[str] = Counter()
    for labels, value in _samples(text.splitlines(), "apiserver_request_total"):
        if labels["verb"] in WRITES:
            subresource = f"/{labels['subresource']}" if labels["subresource"] else ""
            counted[f"{labels['verb']} {labels['resource']}{subresource}"] += value
    return counted


def attributed(
    calls: Mapping[str, int], written: Mapping[str, int], own: AbstractSet[str], rest: Mapping[str, str]
) -> dict[str, int]:
    """A client's calls by verb, split by resource if possible.

    `own` are writes that only this client makes, so the counts of the server are its own. `rest` names the remaining
    calls of a verb, if they are all of one kind.
    """
    left, named = dict(calls), {}
    for call in own & written.keys():
        verb = call.split()[0]
        named[call] = min(written[call], left.get(verb, 0))
        left[verb] = left.get(verb, 0) - named[call]
    named |= {rest.get(verb, verb): number for verb, number in left.items()}
    return {call: number for call, number in sorted(named.items()) if number > 0}


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What came between. Nothing that stood still is listed."""
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: number for name, number in sorted(grown.items()) if number > 0}
