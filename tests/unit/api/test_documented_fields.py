"""Fields, values and environment variables of the project that pages for users name are real ones."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.api.crd import custom_resource_definition
from trainyard.api.spec import Framework

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
SCHEMA: Json = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("frameworks/*.md"), *(ROOT / "docs").glob("reference/*.md")])
CODE = re.compile(r"`([^`]+)`")
FIELD = re.compile(r"(?:spec\.|status\.)?(?:lifecycle|recovery|elastic|network|parallelism|scheduling)\.[A-Za-z.]+")
OWN_FRAMEWORK = re.compile(r"framework: ([a-z]+)")
OWN_VARIABLE = re.compile(r"\bTRAINYARD_[A-Z_]*[A-Z]\b")


def words(page: Path) -> Iterator[str]:
    """What a page marks as code within a sentence or a table."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    yield from (found.replace("\n", " ") for found in CODE.findall(prose))


def exists(field: str) -> bool:
    """Whether a field is one of the CRD; without a prefix, of `spec`."""
    names = field.split(".")
    node: Json = SCHEMA[names.pop(0)] if names[0] in SCHEMA else SCHEMA["spec"]
    for name in names:
        node = node.get("properties", {}).get(name) or node.get("items", {}).get("properties", {}).get(name)
        if node is None:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_fields_exist(page: Path) -> None:
    fields = {found.group().rstrip(".") for word in words(page) if (found := FIELD.match(word))}
    assert [field for field in sorted(fields) if not exists(field)] == []
    frameworks = {name for word in words(page) for name in OWN_FRAMEWORK.findall(word)}
    assert frameworks <= {*Framework}


def test_documented_variables_exist() -> None:
    code = "".join(
        file.read_text() for folder in ("operator", "trainer-image", "helm") for file in (ROOT / folder).rglob("*.py")
    )
    named = {name for page in PAGES for word in words(page) for name in OWN_VARIABLE.findall(word)}
    assert sorted(name for name in named if name not in code) == []
    assert len(named) > 30
