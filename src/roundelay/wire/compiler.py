"""Readers and writers of PDUs, compiled from what their classes say of themselves (`core.fields`).

A class becomes the source of two functions, as one would write them by hand.  Neighbouring fields
of fixed size, those of nested objects among them, are one `struct.Struct`, together with the
envelope before them and the head of the part of other size after them.  Of ACK the reader is::

    def read(data, end, rest=None):
        if 45 > end: return in_steps(data, end)
        flags, line, sender, group, chan_seq, life, _tl_0, _tl_1, _ts, … = unpack_0(data, 4)
        if sender == 65535: raise MalformedPdu("sender", f"{sender}")
        if _ts < 0: raise MalformedPdu(BAD_VALUE, f"ts = {_ts}")
        …
        return Envelope(Ack((_tl_0, _tl_1), _ts, …), sender, group, chan_seq, flags, line, life)

Both directions make the same checks.  What is too short for such a `struct` is read once more
`in_steps`, field by field, so that it is refused for the first thing that is wrong with it.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final
from zlib import crc32

from msgspec import Struct

from roundelay.core.bundle import MANY, Bundle
from roundelay.core.errors import MalformedPdu
from roundelay.core.fields import (
    S63,
    U16,
    U32,
    Bundled,
    Field,
    Flag,
    HistoryRecord,
    Integer,
    Kind,
    ListVersion,
    MemberIds,
    Nested,
    NumberVector,
    Truth,
    Vector,
    fields_of,
)
from roundelay.wire.envelope import CHECKSUM, FLAGS, LINE_LAST, PREFIX_SIZE, Envelope, checksum
from roundelay.wire.envelope import CODES as ENVELOPE_CODES
from roundelay.wire.parts import (
    BAD_VALUE,
    BAD_VERSION,
    NO_ID,
    SHORT_BODY,
    TRAILING,
    PartCodec,
    check_count,
    part_of,
)
from roundelay.wire.payload import HEAD, read_bundle, write_bundle

COPIED_MAX: Final = 1024
"""Below so many bytes, a copy of messages costs less than a part of their own."""

CODES: Final = {8: "B", 16: "H", 32: "I", 64: "q"}
"""Codes of integers for `struct`, by bits; those of 64 are signed, which makes −1 all ones."""

FIXED: Final = (Integer, Truth, ListVersion, HistoryRecord)

Reader = Callable[..., Envelope]
"""(data, end of the body, pieces besides `data` if there are any) → the PDU in its envelope"""
Writer = Callable[[Any, int, int, int, int, int, int], list[bytes]]
"""(PDU, flags, line, sender, group, chan_seq, life) → its bytes but for the checksum, in parts"""
Encoder = Callable[[Any, int, int, int, int, int, int], bytes]
"""The same → all of its bytes"""


def _listed(version: tuple[int, int]) -> tuple[int, int]:
    """`version`, unless its bytes would say that there is none."""
    number, site = version
    if number == U32 or site == U16:
        raise MalformedPdu(BAD_VERSION, f"{version} is kept for sites without a list")
    return version


def _join(parts: list[bytes]) -> bytes:
    parts.append(checksum(parts))
    return b"".join(parts)


NAMES: Final = {
    "Bundle": Bundle,
    "Envelope": Envelope,
    "MalformedPdu": MalformedPdu,
    "BAD_VALUE": BAD_VALUE,
    "BAD_VERSION": BAD_VERSION,
    "SHORT_BODY": SHORT_BODY,
    "TRAILING": TRAILING,
    "crc32": crc32,
    "join": _join,
    "listed": _listed,
    "pack_checksum": CHECKSUM.pack,
    "read_bundle": read_bundle,
    "write_bundle": write_bundle,
}
"""What the compiled functions refer to."""


def _refuse(condition: str, reason: str, text: str) -> str:
    """The statement that does so."""
    return f'if {condition}: raise MalformedPdu({reason}, f"{text}")'


class FieldRun(Struct):
    """Neighbouring fields of fixed size, and perhaps the tail of a part whose head is the last."""

    codes: str = ""
    variables: list[str] = []
    """What is read and written there, in order."""
    limits: list[str] = []
    """Statements that refuse numbers, in both directions."""
    shapes: list[str] = []
    """Statements that refuse what several numbers make; the last one comes first."""
    loads: list[str] = []
    """Statements that take the variables from the object that is written."""
    read: list[str] = []
    """Of a part: statements that read its tail."""
    write: list[str] = []
    """Of a part: statements that write its tail."""

    def add(self, field: Field, name: str, attribute: str) -> str:
        """Read and write one field here; return the expression for its value."""
        kind = field.kind
        if isinstance(kind, Integer):
            return self._add_integer(kind, field.name, name, attribute)
        if isinstance(kind, Truth):
            self._add_integer(Integer(8, 0, 1), field.name, name, f"1 if {attribute} else 0")
            return f"{name} == 1"
        numbers = [f"{name}_0", f"{name}_1"]
        if isinstance(kind, HistoryRecord):
            ident, parent, base = numbers = [*numbers, f"{name}_2"]
            self.codes += "qqq"
            wrong = f"{ident} < 0 or {parent} < 0 or {base} < -1"
            text = f"history {{{ident}}}, {{{parent}}}, {{{base}}}"
            self.shapes.append(_refuse(wrong, "BAD_VALUE", text))
            value = f"({ident}, {parent}, {base})"
        else:
            assert isinstance(kind, ListVersion)
            number, site = numbers
            self.codes += "IH"
            wrong = f"{number} == {U32} or {site} == {U16}"
            value = f"({number}, {site})"
            if kind.or_none:
                attribute = f"({U32}, {U16}) if {attribute} == (-1, -1) else listed({attribute})"
                wrong = f"({number} == {U32}) != ({site} == {U16})"
                value = f"((-1, -1) if {site} == {U16} else {value})"
            self.shapes.append(_refuse(wrong, "BAD_VERSION", f"({{{number}}}, {{{site}}})"))
        self.variables += numbers
        self.loads.append(f"{', '.join(numbers)} = {attribute}")
        return value

    def _add_integer(self, kind: Integer, label: str, name: str, attribute: str) -> str:
        self.codes += CODES[kind.bits]
        self.variables.append(name)
        least, most = (-S63 - 1, S63) if kind.bits == 64 else (0, (1 << kind.bits) - 1)
        if kind.least < least:  # −1
            self.loads.append(f"{name} = {most} if {attribute} == -1 else {attribute}")
            return f"(-1 if {name} == {most} else {name})"
        self.loads.append(f"{name} = {attribute}")
        wrong = [f"{name} < {kind.least}"] if kind.least > least else []
        wrong += [f"{name} > {kind.most}"] if kind.most < most else []
        if wrong:
            self.limits.append(_refuse(" or ".join(wrong), "BAD_VALUE", f"{label} = {{{name}}}"))
        return name

    @property
    def refusals(self) -> list[str]:
        return self.limits + self.shapes[::-1]


class CodecPlan:
    """How the objects of one class are read and written."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.steps: list[FieldRun] = []
        self.kinds: list[Kind] = []
        self.names: dict[str, Any] = dict(NAMES)
        self.value = self._add(cls, "pdu", "_")
        """The expression that makes an object of what was read."""

    @property
    def least(self) -> int:
        """Bytes that such an object has at least."""
        heads = struct.calcsize(">" + "".join(step.codes for step in self.steps))
        return heads + sum(2 * kind.fewest for kind in self.kinds if isinstance(kind, MemberIds))

    @property
    def in_pieces(self) -> bool:
        """Whether a large PDU can be read from its pieces: numbers, then a bundle."""
        *before, last = self.kinds
        return isinstance(last, Bundled) and all(
            isinstance(kind, (*FIXED, NumberVector)) for kind in before
        )

    def _add(self, cls: type[Any], owner: str, prefix: str) -> str:
        """Plan the fields of `cls`; return the expression that makes the object."""
        self.names[cls.__name__] = cls
        values: list[str] = []
        run: FieldRun | None = None
        for flags, group in groupby(fields_of(cls), lambda field: isinstance(field.kind, Flag)):
            if flags:
                values += self._add_flags(list(group), owner, prefix)
                run = None
                continue
            for field in group:
                attribute, name = f"{owner}.{field.name}", f"{prefix}{field.name}"
                if isinstance(field.kind, Nested):
                    values.append(self._add(field.kind.cls, attribute, f"{name}_"))
                    run = None
                    continue
                self.kinds.append(field.kind)
                if isinstance(field.kind, FIXED):
                    if run is None:
                        run = FieldRun()
                        self.steps.append(run)
                    values.append(run.add(field, name, attribute))
                else:
                    self.steps.append(self._part(field, name, attribute))
                    values.append(name)
                    run = None
        return f"{cls.__name__}({', '.join(values)})"

    def _add_flags(self, flags: list[Field], owner: str, prefix: str) -> list[str]:
        """One byte for all of them; return their values."""
        self.kinds += [flag.kind for flag in flags]
        name = f"{prefix}flags"
        bits = [f"({1 << at} if {owner}.{flag.name} else 0)" for at, flag in enumerate(flags)]
        limit = _refuse(f"{name} >> {len(flags)}", "BAD_VALUE", f"flags {{{name}:#04x}}")
        loads = [f"{name} = {' | '.join(bits)}"]
        self.steps.append(FieldRun("B", [name], limits=[limit], loads=loads))
        return [f"({name} & {1 << at}) != 0" for at in range(len(flags))]

    def _part(self, field: Field, name: str, attribute: str) -> FieldRun:
        """The head of a part, and how its tail is read and written."""
        if isinstance(field.kind, Bundled):
            return self._messages(name, attribute)
        count, tail = f"{name}_count", f"{name}_tail"
        if isinstance(field.kind, Vector):
            part = vector(field.kind.cls, field.name)
            write = [f"parts = (*parts, out, *{tail}); out = b''"]
        else:
            part = part_of(field.kind, field.name)
            write = [f"out += {tail}"]
        self.names |= {f"count{name}": part.count, f"read{name}": part.read}
        self.names[f"write{name}"] = part.write
        return FieldRun(
            part.head,
            [count],
            loads=[
                f"{name} = {attribute}",
                f"{tail} = write{name}({name})",
                f"{count} = count{name}({name})",
            ],
            read=[f"{name}, pos = read{name}(data, pos, end, {count})"],
            write=write,
        )

    def _messages(self, name: str, attribute: str) -> FieldRun:
        """A bundle.  One message is written, and few of one size are read, without a call."""
        count, width, word = head = [f"{name}_count", f"{name}_width", f"{name}_word"]
        sizes, data, length = f"{name}_sizes", f"{name}_data", f"{name}_length"
        table, marks = f"{name}_table", f"{name}_marks"
        others = f"{table} = {marks}"
        single = f"len({sizes}) == 1 and {sizes}[0] == {length} and {length} and not {name}.marks"
        few = f"not {width} and 0 < {count} < {MANY} and {word} and not {word} % {count}"
        equal = f"Bundle(({word} // {count},) * {count}, data[pos : pos + {word}])"
        return FieldRun(
            HEAD,
            head,
            loads=[
                f"{name} = {attribute}; {sizes} = {name}.sizes; {data} = {name}.data",
                f"{length} = len({data})",
                f"if {single}: {count} = 1; {width} = 0; {word} = {length}; {others} = b''",
                f"else: {', '.join([*head, table, marks])} = write_bundle({name})",
            ],
            read=[
                f"if {few} and pos + {word} <= end and rest is None:",
                f"    {name} = {equal}; pos += {word}",
                f"else: {name}, pos = read_bundle(data, pos, end, {', '.join(head)}, rest)",
            ],
            write=[
                f"if {length} < {COPIED_MAX} and not {width}: out += {data}",
                f"else: parts = (*parts, out + {table}, {data}); out = {marks}",
            ],
        )

    # -- the functions -------------------------------------------------------------------------

    def reader(self, envelope: FieldRun | None = None, merged: bool = True) -> Callable[..., Any]:
        """What reads such an object: as a PDU in that envelope, or as an item in a body."""
        if envelope is None:
            lines = ["def read(data, pos, end, rest=None):", "start = pos"]
            again, steps = "return in_steps(data, start, end)", self.steps
        else:
            lines = ["def read(data, end, rest=None):"]
            again, steps = "return in_steps(data, end)", [envelope, *self.steps]
        if not merged:
            again = "raise MalformedPdu(SHORT_BODY)"
        names = dict(self.names)
        for at, group in enumerate(_groups(steps) if merged else ([step] for step in steps)):
            fixed = struct.Struct(">" + "".join(step.codes for step in group))
            names[f"unpack_{at}"] = fixed.unpack_from
            begin, after = "pos", f"pos + {fixed.size}"
            if envelope is not None and not at:
                begin, after = str(PREFIX_SIZE), str(PREFIX_SIZE + fixed.size)
            lines += [
                f"if {after} > end: {again}",
                f"{', '.join(_variables(group))}, = unpack_{at}(data, {begin})",
                *[refusal for step in group for refusal in step.refusals],
                f"pos = {after}",
                *[line for step in group for line in step.read],
            ]
        if envelope is None:
            lines.append(f"return {self.value}, pos")
        else:
            lines += [
                'if pos != end: raise MalformedPdu(TRAILING, f"{end - pos} of them")',
                f"return Envelope({self.value}, sender, group, chan_seq, flags, line, life)",
            ]
        if merged:
            on_first_use(names, "in_steps", lambda: self.reader(envelope, merged=False))
        return self._compiled("read", lines, names)

    def writer(
        self, envelope: FieldRun | None = None, prefix: bytes = b"", with_checksum: bool = False
    ) -> Callable[..., Any]:
        """What writes such an object: as a PDU in that envelope, which begins with `prefix`, or as
        an item in a body.  It returns the parts, or the whole of a PDU with its checksum."""
        names = self.names | {"prefix": prefix}
        if envelope is None:
            lines, steps = ["def write(pdu):"], self.steps
        else:
            lines = [f"def write(pdu, {', '.join(envelope.variables)}):"]
            steps = [FieldRun(f"{len(prefix)}s", ["prefix"]), envelope, *self.steps]
        in_parts = any(isinstance(kind, Bundled | Vector) for kind in self.kinds)
        lines += ["parts = ()"] if in_parts else []
        for at, group in enumerate(_groups(steps)):
            codes = "".join(step.codes for step in group)
            names[f"pack_{at}"] = struct.Struct(f">{codes}").pack
            lines += [load for step in group for load in step.loads]
            lines += [refusal for step in group for refusal in step.refusals]
            lines.append(f"out {'+=' if at else '='} pack_{at}({', '.join(_variables(group))})")
            lines += [write for step in group for write in step.write]
        if not with_checksum:
            lines.append("return [*parts, out]" if in_parts else "return [out]")
        else:
            lines += ["if parts: return join([*parts, out])"] if in_parts else []
            lines.append("return out + pack_checksum(crc32(out))")
        return self._compiled("write", lines, names)

    def _compiled(self, name: str, lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
        head, *body = lines
        source = head + "".join(f"\n    {line}" for line in body) + "\n"
        file = f"<{name} {self.cls.__name__}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
        function: Callable[..., Any] = names[name]
        return function


def on_first_use(table: dict[Any, Any], key: Any, make: Callable[[], Callable[..., Any]]) -> None:
    """Put a function into `table` that is made when it is called for the first time."""

    def first(*arguments: Any) -> Any:
        function = table[key] = make()
        return function(*arguments)

    table[key] = first


def envelope(always: int) -> FieldRun:
    """The envelope of PDUs that have the flags `always`, but for its constant prefix."""
    flags = f"flags > {FLAGS}" + (f" or flags & {always} != {always}" if always else "")
    return FieldRun(
        ENVELOPE_CODES,
        ["flags", "line", "sender", "group", "chan_seq", "life"],
        limits=[
            _refuse(flags, '"flags"', "{flags:#04x}"),
            _refuse(f"line > {LINE_LAST}", '"line"', "{line}"),
            _refuse(f"sender == {NO_ID}", '"sender"', "{sender}"),
        ],
        loads=[f"flags |= {always}"] if always else [],
    )


def _variables(steps: list[FieldRun]) -> list[str]:
    return [name for step in steps for name in step.variables]


def _groups(steps: list[FieldRun]) -> Iterator[list[FieldRun]]:
    """Steps that are one `struct`: up to each part, with its head."""
    group: list[FieldRun] = []
    for step in steps:
        group.append(step)
        if step.read:
            yield group
            group = []
    if group:
        yield group


_plans: dict[type[Any], CodecPlan] = {}


def plan_of(cls: type[Any]) -> CodecPlan:
    plan = _plans.get(cls)
    if plan is None:
        plan = _plans[cls] = CodecPlan(cls)
    return plan


def vector(cls: type[Any], name: str) -> PartCodec:
    """A vector of objects that describe themselves."""
    plan = plan_of(cls)
    least, read_item, write_item = plan.least, plan.reader(), plan.writer()

    def read(data: bytes, pos: int, end: int, count: int) -> tuple[tuple[Any, ...], int]:
        if count * least > end - pos:
            raise MalformedPdu(SHORT_BODY, f"{count} {name}")
        items = []
        for _ in range(count):
            item, pos = read_item(data, pos, end)
            items.append(item)
        return tuple(items), pos

    def write(items: tuple[Any, ...]) -> list[bytes]:
        check_count(items, name)
        parts: list[bytes] = []
        for item in items:
            parts += write_item(item)
        return parts

    return PartCodec("B", len, read, write)
