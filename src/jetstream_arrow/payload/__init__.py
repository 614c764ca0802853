# SPDX-License-Identifier: Apache-2.0
"""Decoding payloads in Arrow batches: Avro, Protobuf, schema registries and compression. Spark's workers do it, and so
does :func:`jetstream_arrow.decoded`."""
