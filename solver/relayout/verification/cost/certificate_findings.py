"""The verdict on a certificate among the findings, and certificates in files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from relayout.errors import InputError, UsageError
from relayout.model.graph_json.json_text import parse_json
from relayout.report.schema import Finding, Report
from relayout.verification.cost.certificate import Verdict, check

_Number = Annotated[int, Meta(ge=0)]
_Use = tuple[_Number, tuple[_Number, ...]]


class _Item(Struct, frozen=True):
    producer: _Use
    consumers: tuple[_Use, ...]
    conversion: tuple[tuple[_Number | None, ...], ...]
    reuses_copies: bool = False


class _Form(Struct, frozen=True):
    """The keys of a certificate: see `relayout.verification.cost.certificate`."""

    choices: tuple[tuple[_Number, ...], ...]
    items: tuple[_Item, ...]
    assignment: tuple[_Number, ...]
    cost: _Number
    bound: _Number
    unit: tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=1)]]
    most: _Number | None = None
    source_sha256: str | None = None


def written_certificate(certificate: Mapping[str, Any]) -> str:
    """The certificate as the text of a file."""
    return json.dumps(certificate, separators=(",", ":")) + "\n"


def read_certificate(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The certificate in a file. Raises UsageError, InputError."""
    where = f"--certificate {os.fspath(path)}"
    try:
        certificate = parse_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        hint = "write it: relayout legalize ... --certificate FILE"
        problem, found = "the certificate cannot be read", error.strerror or str(error)
        raise UsageError(problem, where=where, found=found, hint=hint) from error
    except ValueError as error:
        raise InputError("not a certificate", where=where, expected="JSON", found=str(error)[:200]) from error
    if not isinstance(certificate, dict) or certificate.get("version") != 1:
        expected = "a certificate of version 1, as `relayout legalize --certificate` writes it"
        raise InputError("not a certificate", where=where, expected=expected, found=str(certificate)[:80])
    return certificate


def with_proof(report: Report, certificate: Mapping[str, Any]) -> Report:
    """The report with the checker's verdict among the findings; a fault makes the verification fail."""
    return report.with_findings((*check_certificate(certificate, report.cost), *report.findings))


def check_certificate(
    certificate: Mapping[str, Any], cost: int | None, source: str | None = None, where: str = "certificate"
) -> Iterator[Finding]:
    """Yield the checker's verdict, and an error if the certificate is of another answer than that of this cost and of
    the source of this SHA-256, as far as they are known. Raises InputError for what is no certificate."""
    try:
        _check_form(convert(certificate, _Form))
        finding = _verdict(check(certificate), certificate)
        claimed = _in_unit(int(certificate["cost"]), certificate)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        found = f"{type(error).__name__}: {error}"[:200]
        raise InputError("not a certificate", where=where, expected="the keys of version 1", found=found) from error
    yield finding
    if cost is not None and claimed != cost:
        message = "the certificate is of an answer with another cost"
        yield Finding(rule="certificate", expected=str(cost), found=str(claimed), message=message)
    of = certificate.get("source_sha256")
    if source is not None and of is not None and of != source:
        message = "the certificate is of the answer for another source"
        yield Finding(rule="certificate", expected=source, found=str(of), message=message)


def _check_form(form: _Form) -> None:
    """Raise IndexError for the number of a choice, an alternative or a format that is none, and ValueError for lists
    of different lengths."""
    sizes = [len(costs) for costs in form.choices]
    for alternative, size in zip(form.assignment, sizes, strict=True):
        if alternative >= size:
            raise IndexError(f"assignment: alternative {alternative} of {size}")
    for number, item in enumerate(form.items):
        count = len(item.conversion)
        if any(len(row) != count for row in item.conversion):
            raise ValueError(f"items[{number}].conversion: rows of another length than {count}")
        for choice, formats in (item.producer, *item.consumers):
            if len(formats) != sizes[choice]:
                raise ValueError(f"items[{number}]: {len(formats)} formats for the {sizes[choice]} of choice {choice}")
            if max(formats, default=0) >= count:
                raise IndexError(f"items[{number}]: format {max(formats)} of {count}")


def _verdict(verdict: Verdict, certificate: Mapping[str, Any]) -> Finding:
    size = f"{len(certificate['choices'])} choices and {len(certificate['items'])} items"
    cost, bound = _in_unit(verdict.cost, certificate), _in_unit(int(certificate["bound"]), certificate)
    if certificate.get("most") is not None:
        size += f" with at most {certificate['most']} conversions"
    if verdict.fault is not None:
        message = "the solution is not what it claims to be"
        return Finding(rule="certificate", expected=f"cost {certificate['cost']}", found=verdict.fault, message=message)
    if verdict.on_trust:
        share = f"{_in_unit(verdict.bound, certificate)} of {bound}"
        message = f"the cost was derived again; of the bound only a part, over {size}: the rest is taken on trust"
        return Finding(rule="certificate", severity="note", found=share, message=message)
    message = f"the cost {cost} and the bound {bound} were derived again, over {size}"
    return Finding(rule="certificate", severity="note", found=str(cost), message=message)


def _in_unit(cost: int, certificate: Mapping[str, Any]) -> int:
    """A cost of the certificate in the objective's unit."""
    weight, divisor = certificate["unit"]
    return cost // int(weight) * int(divisor)
