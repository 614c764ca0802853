# SPDX-License-Identifier: Apache-2.0
"""The description of this provider that Airflow reads, with the connection form.

This module imports nothing, because an error here would break Airflow.
"""

DEFAULT_LEDGER = "airflow"
"""The ledger of a connection without the field ``ledger``. The ledgers of such connections have this name already, so
it must not change."""


def get_provider_info() -> dict[str, object]:
    """Return the provider's description, whose schema is ``airflow/provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-nats-jetstream",
        "name": "NATS JetStream",
        "description": (
            "Hands messages of NATS JetStream to Spark and other tasks, and acknowledges a message only after the work "
            "that needed it has succeeded."
        ),
        "integrations": [
            {"integration-name": "NATS JetStream", "external-doc-url": "https://docs.nats.io", "tags": ["service"]}
        ],
        "operators": [
            {
                "integration-name": "NATS JetStream",
                "python-modules": [
                    "airflow_nats_jetstream.operators.consumer",
                    "airflow_nats_jetstream.operators.key",
                    "airflow_nats_jetstream.operators.message",
                    "airflow_nats_jetstream.operators.partitions",
                    "airflow_nats_jetstream.operators.process",
                    "airflow_nats_jetstream.operators.publish",
                    "airflow_nats_jetstream.operators.settle",
                    "airflow_nats_jetstream.operators.spark_submit",
                    "airflow_nats_jetstream.operators.stream",
                    "airflow_nats_jetstream.operators.to_table",
                ],
            }
        ],
        "sensors": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.sensors"]}],
        "triggers": [
            {
                "integration-name": "NATS JetStream",
                "python-modules": [
                    "airflow_nats_jetstream.held_trigger",
                    "airflow_nats_jetstream.triggers",
                    "airflow_nats_jetstream.watcher",
                ],
            }
        ],
        # Airflow's schema describes objects, but its loader accepts only class paths, which the schema does not refuse.
        "queues": ["airflow_nats_jetstream.queues.JetStreamQueueProvider"],
        "asset-uris": [
            {
                "schemes": ["nats"],
                "handler": "airflow_nats_jetstream.assets.sanitize_uri",
                "factory": "airflow_nats_jetstream.assets.create_asset",
                "to_openlineage_converter": "airflow_nats_jetstream.signals.lineage.convert_asset_to_openlineage",
            }
        ],
        "hooks": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.hooks"]}],
        "notifications": ["airflow_nats_jetstream.notifications.JetStreamNotifier"],
        "extra-links": ["airflow_nats_jetstream.links.JetStreamLink", "airflow_nats_jetstream.links.SparkMasterLink"],
        "cli": ["airflow_nats_jetstream.command_line.airflow_commands"],
        "task-decorators": [
            {"name": "jetstream", "class-name": "airflow_nats_jetstream.operators.process.jetstream_task"}
        ],
        "connection-types": [
            {
                "connection-type": "nats",
                "hook-name": "NATS JetStream",
                "hook-class-name": "airflow_nats_jetstream.hooks.JetStreamHook",
                "ui-field-behaviour": FIELD_BEHAVIOUR,
                "conn-fields": CONNECTION_FIELDS,
            }
        ],
        "config": {
            "nats": {
                "description": "Connections to NATS JetStream.",
                "options": {
                    "credential_folders": {
                        "description": (
                            "Folders, separated by colons. If a connection gives the path of a file instead of a "
                            "password, a key or a certificate, the file must be below one of these folders on every "
                            "machine that connects; symbolic links are resolved before the check. A user who is "
                            "allowed to edit connections can send any file below these folders to a server as a "
                            "password, so name only folders that contain no files other than credentials for NATS. "
                            "If the list is empty, connections cannot give paths of files."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "/run/secrets/nats:/etc/nats/credentials",
                        "default": "/run/secrets/nats",
                    }
                },
            },
            "jetstream_events": {
                "description": (
                    "Publish every change of a DAG run, a task instance and an asset to JetStream. docs/monitoring.md "
                    "has the subjects and the content."
                ),
                "options": EVENT_OPTIONS,
            },
        },
    }


def _option(description: str, default: str, *, kind: str = "string", example: str | None = None) -> dict[str, object]:
    """Return an option of Airflow's configuration.

    description:  the help text.
    default:      the default, as in the file.
    kind:         Airflow's name of the type. Default ``string``.
    example:      an example. Default None.
    """
    return {
        "description": description,
        "version_added": None,
        "type": kind,
        "example": example,
        "default": default,
    }


def _patterns(what: str, kind: str) -> dict[str, object]:
    """Return the option with patterns of names that are published, or not.

    what:  what the names are of, in words.
    kind:  ``allow`` or ``deny``.
    """
    said = {
        "allow": "If there are any, only the names that match one are published.",
        "deny": "Names that match one are not published, even if they are allowed.",
    }
    return _option(f"Glob patterns of {what}, separated by commas. {said[kind]}", "", example="demo_*,orders")


EVENT_OPTIONS = {
    "nats_conn_id": _option(
        "The id of the connection. If it is empty, nothing is published.", "", example="nats_default"
    ),
    "stream": _option(
        "The name of the stream that must store the events. If it is empty, any stream that listens on the subjects "
        "stores them.",
        "",
        example="AIRFLOW",
    ),
    "subject_prefix": _option("What all subjects begin with.", "airflow", example="airflow.production"),
    "dag_run_events_enabled": _option("Whether changes of DAG runs are published.", "True", kind="boolean"),
    "task_instance_events_enabled": _option("Whether changes of task instances are published.", "True", kind="boolean"),
    "asset_events_enabled": _option("Whether changes of assets are published.", "True", kind="boolean"),
    **{
        f"{option}_{kind}list": _patterns(what, kind)
        for option, what in (
            ("dag_run_dag_id", "ids of DAGs, for changes of their runs"),
            ("task_instance_dag_id", "ids of DAGs, for changes of their task instances"),
            ("task_instance_task_id", "ids of tasks, for changes of their instances"),
            ("asset_name", "names of assets"),
        )
        for kind in ("allow", "deny")
    },
    "max_events": _option(
        "How many events each process keeps in memory while NATS does not answer. Further events are lost, counted "
        "and logged.",
        "10000",
        kind="integer",
    ),
    "grace": _option(
        "For how many seconds a process that ends waits until its last events are stored. It does not wait while NATS "
        "is known not to answer. With 0 it never waits.",
        "2.0",
        kind="float",
    ),
}


def _field(label: str, description: str, *, kind: str = "string", form: str = "") -> dict[str, object]:
    """Return a field of the form. Its type includes "null", because the form would otherwise mark it as required.

    label:        the label of the field.
    description:  the help text of the field.
    kind:         the JSON type of the field. Default ``string``.
    form:         how the form shows the field: ``password`` or ``multiline``. Default: one visible line.
    """
    shown = {"format": form} if form else {}
    return {"label": label, "description": description, "schema": {"type": [kind, "null"], **shown}}


CONNECTION_FIELDS = {
    "servers": _field(
        "Servers",
        "Use this instead of Host: server addresses, separated by commas, for example "
        "nats://a.example.com:4222,tls://b.example.com:4222. They must not contain a user or password.",
    ),
    "token": _field(
        "Token",
        "Use this instead of User and Password: the token, or file:// and the absolute path of a file that contains "
        "the token.",
        form="password",
    ),
    "nkey_secret": _field(
        "NKey seed",
        "Use this instead of User and Password: the seed of a user, which begins with SU, or the path of a file that "
        "contains the seed.",
        form="password",
    ),
    "creds_secret": _field(
        "Credentials",
        "Use this instead of User and Password: the content of a .creds file, with or without line breaks, or the path "
        "of the file.",
        form="password",
    ),
    "tls": _field(
        "TLS",
        "Connect with TLS only. The other TLS fields and tls:// addresses also switch this on.",
        kind="boolean",
    ),
    "tls_ca": _field(
        "TLS authorities",
        "Certificates of the authorities that are trusted to sign the server's certificate, as PEM or as the path "
        "of a file. Default: the authorities that this machine trusts.",
        form="multiline",
    ),
    "tls_certificate": _field(
        "TLS client certificate",
        "The client certificate, for a server that asks for one: as PEM or as the path of a file. Also fill in TLS "
        "private key.",
        form="multiline",
    ),
    "tls_private_key": _field(
        "TLS private key",
        "The key of the client certificate, without a passphrase: as PEM, with or without line breaks, or as the path "
        "of a file.",
        form="password",
    ),
    "tls_hostname": _field(
        "TLS host name",
        "The name that the server's certificate must contain, if it is not the host name in the address.",
    ),
    "tls_handshake_first": _field(
        "TLS handshake first",
        "Begin the connection with the TLS handshake. Needed if the server's TLS configuration has handshake_first.",
        kind="boolean",
    ),
    "inbox_prefix": _field(
        "Inbox prefix",
        "The first tokens of the subjects on which answers arrive, for example _INBOX_sensor. The user needs the "
        "permission to subscribe to these subjects. Default: _INBOX.",
    ),
    "domain": _field(
        "JetStream domain",
        "The JetStream domain to use, if it is not the domain of the connected server, but of a server behind a leaf "
        "node.",
    ),
    "api_prefix": _field(
        "JetStream API prefix",
        "Use this instead of a domain: the prefix of an API that the account imports, for example JS.hub.API. Claims "
        "cannot be taken through an imported API.",
    ),
    "ledger": _field(
        "Ledger",
        "The first part of the names of the two buckets that record claims. Default: "
        f"{DEFAULT_LEDGER}, for the buckets {DEFAULT_LEDGER}_claims and {DEFAULT_LEDGER}_receipts.",
    ),
    "console": _field(
        "Console",
        "The address of a page to which tasks link, for example "
        "https://console.example.com/{stream}?consumer={consumer}&claim={claim}.",
    ),
    "connect_timeout": _field(
        "Connect timeout",
        "Seconds to wait for a connection in total, over all servers and attempts. Default: 10.",
        kind="number",
    ),
    "request_timeout": _field(
        "Request timeout", "Seconds to wait for an answer of the JetStream API. Default: 5.", kind="number"
    ),
    "shortest_ack_wait": _field(
        "Shortest ack wait",
        "Claims are taken only from consumers whose ack_wait is at least this many seconds. Default: 60.",
        kind="number",
    ),
}

FIELD_BEHAVIOUR: dict[str, object] = {
    "hidden-fields": ["schema", "extra"],
    "relabeling": {"host": "Host", "port": "Port", "login": "User", "password": "Password"},
    # The form has no help text for Airflow's own fields, but shows these while the fields are empty.
    "placeholders": {
        "host": "nats.example.com; or several, separated by commas; or fill in Servers",
        "port": "4222; used for each address without a port",
        "login": "user name; leave empty if you authenticate in another way",
        "password": "the password, or file:///path",
    },
}
