"""Read a complete list of one kind, page by page."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from trainyard.kube.errors import ApiError
from trainyard.kube.session import Session

R = TypeVar("R")


async def read_all(
    session: Session,
    path: str,
    params: Mapping[str, str],
    page_size: int,
    read: Callable[[dict[str, Any]], R],
    on_page: Callable[[], object] = bool,
) -> tuple[list[R], str]:
    """Return what `read` makes of all objects of a collection, and the list's resourceVersion.

    Each page is read before the next is requested: the raw objects of one page at most are in memory. Calls `on_page`
    after each page. Raises `ApiError`.
    """
    try:
        return await _pages(session, path, {**params, "limit": str(page_size)}, read, on_page)
    except ApiError as error:
        if not error.gone:
            raise
        # The continue token expired before the last page was read. A single large answer cannot expire half-way.
        return await _pages(session, path, dict(params), read, on_page)


def version_of(item: Mapping[str, Any]) -> str:
    """Return the resourceVersion of an object or a list. Raises `ApiError` where it has none."""
    version = (item.get("metadata") or {}).get("resourceVersion")
    if not isinstance(version, str) or not version.isdecimal():
        raise ApiError(0, "MalformedEvent", "an object of the watch has no resourceVersion")
    return version


async def _pages(
    session: Session,
    path: str,
    params: dict[str, str],
    read: Callable[[dict[str, Any]], R],
    on_page: Callable[[], object],
) -> tuple[list[R], str]:
    items: list[R] = []
    while True:
        page = await session.request("GET", path, params=params)
        on_page()
        items += map(read, page.pop("items", None) or ())
        version = version_of(page)
        if not (token := page["metadata"].get("continue")):
            return items, version
        params["continue"] = token
