"""The one owner of page ids: which are free.

Knows not what a page holds. Called by `cache.PrefixCache` alone.
"""

from __future__ import annotations

from collections.abc import Iterable


class PageError(RuntimeError):
    """A page was freed twice, or never existed: an error of ours, never of a user."""


class FreePages:
    """Free page ids 0..n-1, handed out in a fixed order: last freed first, at the start 0, 1, 2."""

    def __init__(self, n_pages: int) -> None:
        """`n_pages` at least 1."""
        assert n_pages >= 1, f"a pool needs at least one page, found {n_pages}"
        self.total = n_pages
        self._stack = list(range(n_pages - 1, -1, -1))
        self._is_free = bytearray(b"\1") * n_pages

    def __len__(self) -> int:
        return len(self._stack)

    def take(self, n: int) -> list[int]:
        """Hand out `n` pages; the caller has made sure that there are as many."""
        if n <= 0:
            return []
        assert n <= len(self._stack), f"{n} pages taken, {len(self._stack)} free"
        taken = self._stack[: -n - 1 : -1]
        del self._stack[-n:]
        for page in taken:
            self._is_free[page] = 0
        return taken

    def give(self, pages: Iterable[int]) -> None:
        """Take pages back; raises PageError for one that is free already or was never ours."""
        for page in pages:
            if not 0 <= page < self.total:
                raise PageError(
                    f"page {page} does not exist: the pool has pages 0..{self.total - 1}"
                )
            if self._is_free[page]:
                raise PageError(f"page {page} was freed twice")
            self._is_free[page] = 1
            self._stack.append(page)

    def ids(self) -> list[int]:
        """A copy of the free ids, next to be handed out last. O(n): for audits."""
        return list(self._stack)

    def is_free(self, page: int) -> bool:
        """Whether the pool's own mark says that the page is free."""
        return bool(self._is_free[page])
