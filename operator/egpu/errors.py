"""What can go wrong outside, classified once at the edge.

::

    KubeError            the API server's answer, with status code and reason
    ├── Retry            try the same again later: overload, time-out, no connection
    ├── Conflict         somebody wrote first: read again, then decide again
    │   └── AlreadyExists
    ├── NotFound         wait for another object, or take it as done
    └── Rejected         never: invalid, forbidden, refused by admission
"""

from typing import Final


class KubeError(Exception):
    """An answer of the API server other than success.

    Attributes:
        status: HTTP status, 0 where there was no answer at all.
        reason: the ``reason`` of the Status object, such as ``Conflict``.
        message: the server's own words.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


class Retry(KubeError):
    """Nothing is known to be wrong with the request; ``after`` is the server's wish in seconds, if it had one."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", after: float | None = None) -> None:
        super().__init__(message, status=status, reason=reason)
        self.after = after


class Conflict(KubeError):
    """The object changed since it was read, or a JSON patch's test did not hold."""


class AlreadyExists(Conflict):
    """Create found an object of that name."""


class NotFound(KubeError):
    """No such object, or no such kind."""


class Gone(Retry):
    """A watch's or a list's position is too old (410): list again."""


class Rejected(KubeError):
    """The same request will be refused again."""


PATCH_MISFIT: Final = "the server rejected our request due to an error in our request"


def classify(status: int, reason: str, message: str, *, after: float | None = None) -> KubeError:
    """The error class for an API answer.

    429 and 5xx may pass; 409 is a lost race; 410 ends a watch. A JSON patch that does not fit the object as it is now
    (a failed ``test``, a path that has gone) is answered 422 with :data:`PATCH_MISFIT` and no word of the test
    (kube-apiserver 1.36, endpoints/handlers/patch.go): that is a lost race too, not a bad request. A 422 of validation
    says which object is invalid.
    """
    if status == 404:
        return NotFound(message, status=status, reason=reason)
    if status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        return kind(message, status=status, reason=reason)
    if status == 422 and PATCH_MISFIT in message:
        return Conflict(message, status=status, reason=reason)
    if status == 410:
        return Gone(message, status=status, reason=reason)
    if status in (0, 408, 429) or status >= 500:
        return Retry(message, status=status, reason=reason, after=after)
    return Rejected(message, status=status, reason=reason)
