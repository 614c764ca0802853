# SPDX-License-Identifier: Apache-2.0
"""The page "JetStream" in Airflow: what waits, what is held, what failed, and the actions on it.

Only Airflow's api-server loads anything of this package except :mod:`.plugin`.
"""
