"""What Airflow reads about us, the connection form included. Imports nothing: an error here breaks Airflow."""


def get_provider_info() -> dict[str, object]:
    """The provider's description; its shape is ``airflow/provider_info.schema.json``."""
    return {
        "package-name": "airflow-provider-nats-jetstream",
        "name": "NATS JetStream",
        "description": "Carries data from NATS JetStream into Spark; acknowledges only what was processed.",
        "integrations": [
            {"integration-name": "NATS JetStream", "external-doc-url": "https://docs.nats.io", "tags": ["service"]}
        ],
        "operators": [
            {
                "integration-name": "NATS JetStream",
                "python-modules": [
                    "airflow_nats_jetstream.operators.consumer",
                    "airflow_nats_jetstream.operators.message",
                    "airflow_nats_jetstream.operators.process",
                    "airflow_nats_jetstream.operators.publish",
                    "airflow_nats_jetstream.operators.settle",
                    "airflow_nats_jetstream.operators.spark_submit",
                    "airflow_nats_jetstream.operators.stream",
                ],
            }
        ],
        "sensors": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.sensors"]}],
        "triggers": [
            {
                "integration-name": "NATS JetStream",
                "python-modules": ["airflow_nats_jetstream.triggers", "airflow_nats_jetstream.watcher"],
            }
        ],
        # Airflow's schema asks for objects; what its loader takes are class paths, which the schema lets pass.
        "queues": ["airflow_nats_jetstream.queues.JetStreamQueueProvider"],
        "asset-uris": [
            {
                "schemes": ["nats"],
                "handler": "airflow_nats_jetstream.assets.sanitize_uri",
                "factory": "airflow_nats_jetstream.assets.create_asset",
                "to_openlineage_converter": "airflow_nats_jetstream.lineage.convert_asset_to_openlineage",
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
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "extra"],
                    "relabeling": {"host": "Host", "port": "Port", "login": "User", "password": "Password"},
                    # The form has no help text for Airflow's own fields: this stands in them while they are empty.
                    "placeholders": {
                        "host": "nats.example.com, or several with commas; empty with Servers",
                        "port": "4222; of each address that names none",
                        "login": "user name, with its password; empty for every other way to authenticate",
                        "password": "the password, or file:///path",
                    },
                },
                "conn-fields": CONNECTION_FIELDS,
            }
        ],
        "config": {
            "nats": {
                "description": "Connections to NATS JetStream.",
                "options": {
                    "credential_folders": {
                        "description": (
                            "Folders with a colon between. A file that a connection names for a password, a key or a "
                            "certificate must lie below one of them, with symbolic links resolved, on every machine "
                            "that connects. Whoever may edit connections can have any file below them sent to a "
                            "server as a password: name folders that hold nothing but credentials for NATS. Empty: "
                            "connections name no files."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "/run/secrets/nats:/etc/nats/credentials",
                        "default": "/run/secrets/nats",
                    }
                },
            }
        },
    }


def _field(label: str, description: str, *, kind: str = "string", form: str = "") -> dict[str, object]:
    """Every field may be empty; without "null" the form would call it required. ``form`` is how it is shown."""
    shown = {"format": form} if form else {}
    return {"label": label, "description": description, "schema": {"type": [kind, "null"], **shown}}


CONNECTION_FIELDS = {
    "servers": _field(
        "Servers",
        "Addresses with commas between, e.g. nats://a.example.com:4222,tls://b.example.com:4222; instead of "
        "Host. No user or password in them.",
    ),
    "token": _field(
        "Token", "Instead of User and Password: the token, or file:///path of a file that holds it.", form="password"
    ),
    "nkey_secret": _field(
        "NKey seed",
        "Instead of User and Password: a user's seed, which begins with SU, or the path of a file that holds it.",
        form="password",
    ),
    "creds_secret": _field(
        "Credentials",
        "Instead of User and Password: the content of a .creds file, line breaks or not, or its path.",
        form="password",
    ),
    "tls": _field("TLS", "Speak TLS or fail. The fields below and tls:// addresses switch it on, too.", kind="boolean"),
    "tls_ca": _field(
        "TLS authorities",
        "PEM, or the path of a file: who may have signed the server's certificate. Empty: whom this machine trusts.",
        form="multiline",
    ),
    "tls_certificate": _field(
        "TLS client certificate",
        "PEM, or the path of a file: shown to a server that asks for one; needs the private key.",
        form="multiline",
    ),
    "tls_private_key": _field(
        "TLS private key",
        "PEM, line breaks or not, or the path of a file: the client certificate's, without a passphrase.",
        form="password",
    ),
    "tls_hostname": _field(
        "TLS host name", "The name that the server's certificate must carry, when it is not the host of the address."
    ),
    "tls_handshake_first": _field(
        "TLS handshake first", "For a server with handshake_first, which says nothing before TLS.", kind="boolean"
    ),
    "inbox_prefix": _field(
        "Inbox prefix",
        "First tokens of the subjects on which answers arrive, e.g. _INBOX_sensor: what this user may subscribe to. "
        "Empty: _INBOX.",
    ),
    "domain": _field(
        "JetStream domain", "When JetStream is not the connected server's own, for example behind a leaf node."
    ),
    "api_prefix": _field(
        "JetStream API prefix",
        "Instead of a domain: an API that the account imports, e.g. JS.hub.API. Claims cannot be taken through it.",
    ),
    "ledger": _field(
        "Ledger", "First part of the names of the two buckets that remember claims. Empty: airflow (airflow_claims, …)."
    ),
    "console": _field(
        "Console",
        "A page to which tasks link: https://console.example.com/{stream}?consumer={consumer}&claim={claim}.",
    ),
    "connect_timeout": _field(
        "Connect timeout", "Seconds for a connection, all servers and attempts together. Empty: 10.", kind="number"
    ),
    "request_timeout": _field(
        "Request timeout", "Seconds for one answer of the JetStream API. Empty: 5.", kind="number"
    ),
    "shortest_ack_wait": _field(
        "Shortest ack wait", "Seconds: claims refuse consumers whose ack_wait is shorter. Empty: 60.", kind="number"
    ),
}
