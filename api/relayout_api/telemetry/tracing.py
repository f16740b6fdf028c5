"""OpenTelemetry traces, where the extra `tracing` is installed and an exporter is configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from relayout.errors import UsageError

if TYPE_CHECKING:
    from fastapi import FastAPI

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def trace(app: FastAPI) -> None:
    """Send a span of each request to the exporter of OpenTelemetry's own variables; without them do nothing.

    Raises UsageError where the variables are set and the packages are missing.
    """
    endpoint = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(
            "traces need packages that are not installed",
            where=endpoint,
            expected="the packages of the extra `tracing`",
            found=str(error),
            hint='pip install "relayout[tracing]"',
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "relayout"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, excluded_urls="healthz,readyz,metrics")
