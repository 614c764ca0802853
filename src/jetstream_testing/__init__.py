# SPDX-License-Identifier: Apache-2.0
"""Test DAGs and Dagster assets on a real nats-server: a plugin for pytest (:mod:`.plugin`), and what it is made of.

Importing this package loads nothing, because pytest loads its plugin in every project of the environment.
"""
