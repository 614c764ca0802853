# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON value is exactly what its column contains.

Spark's ``from_json`` rounds decimals, reads numbers as seconds or days, moves local times, and ignores NOT NULL and the
case of names. So it reads such types in a form that keeps the value as it was written, and SQL expressions convert it
and find what the column cannot represent. What the values do not show (an integer that a DOUBLE has rounded, or a field
whose name differs only in case) is *doubtful*: only then the payload is parsed a second time, to a VARIANT. Most
payloads need neither: all values are there, and little work shows that each is *sure* to be exact.
"""
