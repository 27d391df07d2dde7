"""The configuration of quantising, as a checked value. Loads pydantic: import this module where it is needed only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hbc.calibration import METHODS, parse_method
from hbc.diagnostics import OptionError

Precision = Literal["int8", "int16", "float"]
Integer = Literal["int8", "int16"]


class Rules(BaseModel):
    """Frozen, and nothing but what is declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ActivationRules(Rules):
    """How activations are rounded where nothing else is said."""

    dtype: Integer = Field(default="int8", description="Integers of activations.")
    method: str = Field(
        default="mix", description=f"How a scale is chosen: {', '.join(METHODS)}; `percentile=0.9999`, `fixed=6`."
    )
    tail: Integer | None = Field(
        default="int16",
        description="Integers behind the last product (a box decoder, a softmax): nothing multiplies them again, so "
        "their error is the output's. Marches without int16 use int8.",
    )
    image: Integer | None = Field(
        default="int16",
        description="Integers of an input that arithmetic reads before any product, such as `(x − mean) / std`: a "
        "range that begins at 0 wastes half of the symmetric integers.",
    )

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        return _method(value)


class WeightRules(Rules):
    """How weights are rounded where nothing else is said: int8, symmetric, one scale per output channel."""

    method: Literal["min-max", "mse"] = Field(
        default="min-max", description="`min-max`, or `mse`: the scale of the least squared error of each channel."
    )


class TensorRule(Rules):
    """How one tensor is rounded."""

    dtype: Integer | None = Field(
        default=None, description="Its integers. A weight may be int16 on nash, beside int8 activations."
    )
    method: str | None = Field(default=None, description="How its scale is chosen.")
    threshold: float | None = Field(
        default=None, gt=0, description="The largest magnitude that it can hold: a fixed scale."
    )

    @field_validator("method")
    @classmethod
    def _method(cls, value: str | None) -> str | None:
        return None if value is None else _method(value)


class AutoRules(Rules):
    """Raise the tensors that cost most to int16, until the outputs are good enough."""

    target: float | None = Field(
        default=None, description="The SQNR in dB that every output is to reach. By default 30."
    )
    top: int | None = Field(default=None, ge=1, description="Raise this many tensors, whatever comes of it.")


class QuantizeConfig(Rules):
    """Everything that changes what comes out of quantising, but for the model, the samples and the march."""

    activations: ActivationRules = Field(
        default_factory=lambda: ActivationRules.model_validate({}), description="Defaults for activations."
    )
    weights: WeightRules = Field(
        default_factory=lambda: WeightRules.model_validate({}), description="Defaults for weights."
    )
    ops: dict[str, Precision] = Field(default={}, description="Precision by ONNX operator: `Softmax: int16`.")
    nodes: dict[str, Precision] = Field(
        default={},
        description="Precision by node name, `*` and `?` standing for any text: of what it reads and what it makes; "
        "`float` keeps the node off integers.",
    )
    tensors: dict[str, TensorRule] = Field(default={}, description="Rules by tensor name, for activations and weights.")
    auto: AutoRules | None = Field(default=None, description="Raise the worst tensors to int16.")
    bias_correction: bool = Field(
        default=False,
        description="Take the mean error that rounded weights cause, per channel, out of the biases.",
    )
    equalise: bool = Field(
        default=True,
        description="Even out the channels of tensors between two products (conv, relu, conv) by factors that "
        "cancel: the float model computes the same, and one scale fits them better. Tensors that `tensors` "
        "names are left out.",
    )
    preprocess: str | None = Field(
        default=None,
        description="How an image becomes an input, as `--preprocess` says it, which goes before: "
        "`resize=320x320,mean=127,scale=1/128`.",
    )
    samples: int | None = Field(default=None, ge=1, description="How many of the samples to use. By default all.")
    measured: int = Field(default=8, ge=1, description="How many of them the losses in the report are measured on.")


def _method(value: str) -> str:
    try:
        return parse_method(value).text
    except OptionError as err:
        raise ValueError("; ".join(filter(None, (err.diagnostic.title, err.diagnostic.hint)))) from err


def key_rows() -> list[tuple[str, str, str, str]]:
    """Key, type, default and meaning of everything in the configuration, for the docs."""
    return list(_rows(QuantizeConfig, ""))


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, info in model.model_fields.items():
        inner = _inner(info.annotation)
        yield f"{prefix}{name}", _type_text(info.annotation), _default_text(info), info.description or ""
        if inner is not None:
            by_name = get_origin(info.annotation) is dict
            yield from _rows(inner, f"{prefix}{name}.NAME." if by_name else f"{prefix}{name}.")


def _default_text(info: FieldInfo) -> str:
    default = info.default
    if default is None or default is PydanticUndefined or default == {}:
        return ""
    return str(default).lower() if isinstance(default, bool) else str(default)


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The model within an annotation: itself, `X | None`, or the values of a dict."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _inner(a)) is not None), None)


def _type_text(annotation: Any) -> str:
    """`int8 or int16`, `text`, `number`, `by name: …`."""
    origin, args = get_origin(annotation), [a for a in get_args(annotation) if a is not type(None)]
    if origin is dict:
        return f"by name: {_type_text(args[1])}"
    if origin is Literal:
        return " or ".join(map(str, args))
    if args:
        return " or ".join(_type_text(a) for a in args)
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return words.get(annotation, "keys")
