"""A complete list of one kind, page by page."""

from collections.abc import Callable, Mapping
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.session import Session


async def read_all(
    session: Session, path: str, params: Mapping[str, str], page_size: int, heard: Callable[[], object] = bool
) -> tuple[list[dict[str, Any]], str]:
    """All objects of a collection, and the version of the list. `heard` is called after each page. Raises `ApiError`."""
    try:
        return await _pages(session, path, {**params, "limit": str(page_size)}, heard)
    except ApiError as error:
        if not error.gone:
            raise
        # The continue token ran out before the last page was read. One large answer cannot expire half-way.
        return await _pages(session, path, dict(params), heard)


def version_of(item: Mapping[str, Any]) -> str:
    """The resourceVersion of an object or a list. Raises `ApiError` where it has none."""
    version = (item.get("metadata") or {}).get("resourceVersion")
    if not isinstance(version, str) or not version.isdecimal():
        raise ApiError(0, "MalformedEvent", "an object of the watch has no resourceVersion")
    return version


async def _pages(
    session: Session, path: str, params: dict[str, str], heard: Callable[[], object]
) -> tuple[list[dict[str, Any]], str]:
    items: list[dict[str, Any]] = []
    while True:
        page = await session.request("GET", path, params=params)
        heard()
        items += page.get("items") or ()
        version = version_of(page)
        if not (token := page["metadata"].get("continue")):
            return items, version
        params["continue"] = token
