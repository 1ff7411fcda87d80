"""Header fields: what is read from a request's and written to a response's."""

import time

import h11

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_FIELD_BYTES = 4
"""What a header field adds to its name and value: a colon, a space, the end of line."""


def field(head: h11.Request, name: bytes) -> bytes:
    """First value of a header field (its name in lower case), empty where it is not there."""
    return next((value for key, value in head.headers if key == name), b"")


def head_bytes(head: h11.Request) -> int:
    """Size of request line and header fields, as sent by a client that writes no needless spaces."""
    return (
        len(head.method) + len(head.target) + sum(len(key) + len(value) + _FIELD_BYTES for key, value in head.headers)
    )


def http_date() -> str:
    """The current time as RFC 9110 wants it in Date, whatever the locale."""
    t = time.gmtime()
    clock = f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02}"
    return f"{_DAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon - 1]} {t.tm_year} {clock} GMT"
