"""A failed conversion of plain values to settings -> one line with path, fault and valid values.

Knows msgspec's messages and the types of the settings, no setting in particular.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at (?P<is_key>`key` in )?`\$(?P<path>[^`]*)`)?$", re.S)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*)`$", re.S)
_OUT_OF_RANGE = re.compile(r"Expected `\w+` (>|<|of length|matching)")
_PART = re.compile(r"\[(?P<index>[^\]]*)\]|\.?(?P<name>[^.\[\]]+)")


def explain(error: msgspec.ValidationError, root: type, values: Mapping[str, Any]) -> str:
    """`root` is the type that `values` should have had."""
    found = _MESSAGE.match(str(error))
    assert found is not None  # the pattern matches any text
    what, (path, hint, value) = found["what"], _resolve(found["path"] or "", root, values)
    unknown = _UNKNOWN.match(what)
    if unknown is not None:
        return _unknown_key(path, unknown["key"], sorted(_fields(hint)))
    where = f"a key of {path or 'the file'}" if found["is_key"] else path or "settings"
    got = f", got {value!r}" if _OUT_OF_RANGE.match(what) and not found["is_key"] else ""
    return f"{where}: {what}{got}{_advice(what, hint, value)}"


def _unknown_key(path: str, key: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(key, valid, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    full = f"{path}.{key}" if path else key
    return f"{full}: unknown key; {guess}valid keys: {', '.join(valid)}"


def _advice(what: str, hint: Any, value: Any) -> str:
    choices = [repr(choice) for choice in _choices(hint)]
    if choices:
        return f"; valid values: {', '.join(choices)}"
    if "`str" in what and what.endswith("got `bool`"):
        return "; YAML reads yes, no, on, off, true and false as booleans: quote it"
    if "`str" in what and what.endswith(("got `int`", "got `float`")):
        return "; YAML reads it as a number: quote it"
    if "`str" in what and what.endswith(("got `date`", "got `datetime`")):
        return "; YAML reads it as a date: quote it"
    if isinstance(value, str) and what.endswith("got `str`"):
        return _number_advice(what, value)
    return ""


def _number_advice(what: str, text: str) -> str:
    """YAML wants a point and a signed exponent: 1e-300 is text to it, as is what is quoted."""
    try:
        number = float(text)
    except ValueError:
        return ""
    if not math.isfinite(number):
        return ""
    if "`float" not in what and number.is_integer() and abs(number) < 2**53:
        number = int(number)
    mantissa, _, exponent = repr(number).partition("e")
    if exponent:
        mantissa += "" if "." in mantissa else ".0"
        exponent = exponent if exponent[0] in "+-" else f"+{exponent}"
        return f"; {text!r} is text to YAML, the number is written {mantissa}e{exponent}"
    return f"; {text!r} is text to YAML, the number is written {mantissa}, without quotes"


def _resolve(path: str, root: type, values: Any) -> tuple[str, Any, Any]:
    """msgspec's path, in which any key of a mapping reads `[...]`, with the keys that are meant;
    the type expected there; and the value found there."""
    hint: Any = root
    names = ""
    for part in _PART.finditer(path):
        hint = _bare(hint)
        if part["name"] is not None:
            key: Any = part["name"]
            hint = get_type_hints(hint, include_extras=True)[key]
            names += f".{key}"
        else:
            hint = get_args(hint)[-1]
            key = int(part["index"]) if part["index"] != "..." else _faulty_key(values, hint)
            names += f"[{key}]" if isinstance(key, int) else f".{key}"
        values = values[key]
    return names.removeprefix("."), _bare(hint), values


def _faulty_key(values: Mapping[str, Any], hint: Any) -> str:
    """The first key whose value does not have the type."""
    for key, value in values.items():
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            return key
    raise AssertionError("msgspec refused a mapping whose values it accepts one by one")


def _bare(hint: Any) -> Any:
    """Without Annotated and `| None`."""
    if hasattr(hint, "__metadata__"):
        return _bare(hint.__origin__)
    others = [arg for arg in get_args(hint) if arg is not NoneType]
    if NoneType in get_args(hint) and len(others) == 1:
        return _bare(others[0])
    return hint


def _choices(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)


def _fields(hint: Any) -> tuple[str, ...]:
    return getattr(hint, "__struct_encode_fields__", ())
