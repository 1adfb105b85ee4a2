"""The one exception by which every part says no to a request."""

from __future__ import annotations


class Refusal(Exception):
    """A request that is not answered: HTTP `status`, a short `code` for programs, the text for people.

    `retry_after_s` says when asking again may help (None: it will not).
    """

    def __init__(self, status: int, code: str, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, object]:
        """The JSON that the client gets."""
        return {"error": self.code, "detail": str(self)}
