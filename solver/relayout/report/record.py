"""The base of the report's records: msgspec structs that pydantic reads, writes and describes like its own models.

A command that shows no report imports no pydantic, which is a tenth of the time that it takes to start and to legalize
a small model.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

from msgspec import NODEFAULT, Struct, json, structs

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema


class AtLeast(Struct, frozen=True):
    """The least value of an integer field, as a part of its annotation."""

    least: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return {**handler(source), "ge": self.least}


class Unbounded(Struct, frozen=True):
    """May be infinite or NaN, as a part of the annotation of a float: JSON has no such number, and gets its name."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "enum": ["Infinity", "-Infinity", "NaN"]}]}


class Record(Struct, frozen=True, kw_only=True):
    """A frozen record without unknown fields. A field `from_` is `from` in JSON.

    Its methods are those of `pydantic.BaseModel` of the same names. Only `model_validate` and `model_validate_json`
    check values.
    """

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """This record with other values for some fields."""
        return structs.replace(self, **update)

    def model_dump(self, *, mode: Literal["json", "python"] = "python", include: Any = None) -> Any:
        """The record as a dict; `include` leaves out other fields, as in pydantic. By the mode `json`, infinity and NaN
        are strings."""
        if mode == "json":
            return json.decode(_adapter(type(self)).dump_json(self, include=include))
        return _adapter(type(self)).dump_python(self, include=include)

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """The record as JSON. Infinity and NaN are strings."""
        return _adapter(type(self)).dump_json(self, indent=indent).decode()

    @classmethod
    def model_validate(cls, value: object) -> Self:
        """The record of a dict. Raises pydantic.ValidationError."""
        record: Self = _adapter(cls).validate_python(value)
        return record

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """The record of JSON. Raises pydantic.ValidationError."""
        record: Self = _adapter(cls).validate_json(text)
        return record

    @classmethod
    def model_json_schema(cls, *, mode: Literal["serialization", "validation"] = "validation") -> dict[str, Any]:
        """The JSON Schema of the record."""
        return _adapter(cls).json_schema(mode=mode)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        hints = get_type_hints(cls, include_extras=True)
        fields = {}
        for field in structs.fields(cls):
            schema, is_required = handler.generate_schema(hints[field.name]), True
            if field.default is not NODEFAULT:
                schema, is_required = core_schema.with_default_schema(schema, default=field.default), False
            elif field.default_factory is not NODEFAULT:
                schema = core_schema.with_default_schema(schema, default_factory=field.default_factory)
                is_required = False
            fields[_written(field.name)] = core_schema.typed_dict_field(schema, required=is_required)
        mapping = core_schema.typed_dict_schema(fields, cls=cls, extra_behavior="forbid")

        def read(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, cls):
                return value
            return cls(**{name if name in hints else f"{name}_": each for name, each in validate(value).items()})

        def written(record: Any, write: core_schema.SerializerFunctionWrapHandler) -> Any:
            return write({_written(name): getattr(record, name) for name in cls.__struct_fields__})

        return core_schema.no_info_wrap_validator_function(
            read,
            mapping,
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
            serialization=core_schema.wrap_serializer_function_ser_schema(written, schema=mapping),
        )


def _written(name: str) -> str:
    """The name of a field in JSON: a trailing underscore only keeps it apart from a keyword of Python."""
    return name.rstrip("_")


@cache
def _adapter(record: type[Any]) -> TypeAdapter[Any]:
    """The reader and writer of a record, made when it is first needed."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(record, config=ConfigDict(ser_json_inf_nan="strings", title=record.__name__))
