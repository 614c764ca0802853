from tests.jetstream_handoff.conftest import js, settings, stream  # noqa: F401 - fixtures
