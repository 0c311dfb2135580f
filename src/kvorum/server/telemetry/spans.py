"""The export of spans to a collector by OpenTelemetry's library, in a thread of its own.

This module sets only the options that flags decide. A collector that does not answer loses spans,
but delays nothing. The library is an optional dependency, so it is imported only if tracing is on.
"""

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from kvorum.process.settings.config import Config, ConfigError
from kvorum.server.telemetry.logs import Logger

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_SECONDS_MAX: Final = 3.0
"""How long the end of the process waits until a collector has accepted the last spans."""


def open_provider(config: Config, logger: Logger) -> "TracerProvider":
    """Start to export spans; raise ConfigError if the library is not installed."""
    # The log reports a missing collector, so gRPC need not do so on stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from kvorum.server.telemetry.tracing import SAMPLER, SampledIds
    except ImportError as error:
        raise ConfigError(
            "--enable-distributed-tracing needs OpenTelemetry, which is not installed "
            f"({error}); run: pip install 'kvorum[tracing]'"
        ) from None
    _log_span_loss(logger)
    identity = {"service.name": config.tracing_service}
    if config.tracing_instance:
        identity["service.instance.id"] = config.tracing_instance
    provider = TracerProvider(
        SAMPLER,
        OTELResourceDetector().detect().merge(Resource(identity)),
        shutdown_on_exit=False,
        id_generator=SampledIds(config.tracing_rate),
    )
    exporter = OTLPSpanExporter(f"http://{config.tracing_address}", insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    logger.info(
        "distributed tracing enabled",
        address=config.tracing_address,
        service_name=config.tracing_service,
        service_instance_id=config.tracing_instance,
        sampling_rate=config.tracing_rate,
    )
    return provider


def close_provider(provider: "TracerProvider", logger: Logger) -> None:
    """Send the remaining spans, and wait at most `FLUSH_SECONDS_MAX` for the collector."""
    closing = threading.Thread(target=provider.shutdown, daemon=True)
    closing.start()
    closing.join(FLUSH_SECONDS_MAX)
    if closing.is_alive():
        logger.warning("the last spans were not sent: the collector does not answer in time")


class _SpanLines(logging.Handler):
    """Writes the library's warnings to the server's log."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning of the library."""
        self._logger.warning("distributed tracing", error=record.getMessage())


def _log_span_loss(logger: Logger) -> None:
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.handlers = [_SpanLines(logger)]
