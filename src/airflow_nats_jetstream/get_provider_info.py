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
                    "airflow_nats_jetstream.operators.stream",
                ],
            }
        ],
        "sensors": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.sensors"]}],
        "triggers": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.triggers"]}],
        "hooks": [{"integration-name": "NATS JetStream", "python-modules": ["airflow_nats_jetstream.hooks"]}],
        "extra-links": ["airflow_nats_jetstream.links.JetStreamLink"],
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
                    "relabeling": {"host": "Host", "port": "Port", "login": "User"},
                    "placeholders": {"host": "nats.example.com", "port": "4222"},
                },
                "conn-fields": {
                    "servers": _field("Servers", "nats://host:4222, several with commas; instead of host and port"),
                    "token": _field("Token", "instead of user and password", secret=True),
                    "nkey_secret": _field("NKey seed", "the text that begins with SU", secret=True),
                    "creds_secret": _field("Credentials", "the content of a .creds file", secret=True),
                    "tls": _field("TLS", "true: speak TLS or fail"),
                    "tls_ca": _field("TLS authorities", "PEM text or path; empty: the system's"),
                    "tls_certificate": _field("TLS client certificate", "PEM text or path"),
                    "tls_private_key": _field("TLS private key", "PEM text or path", secret=True),
                    "tls_hostname": _field("TLS host name", "what the server's certificate must name"),
                    "tls_handshake_first": _field("TLS handshake first", "true: TLS before the server's INFO"),
                    "inbox_prefix": _field("Inbox prefix", "where this user may listen for answers; _INBOX if empty"),
                    "domain": _field("JetStream domain", "when it is not the connected server's, as over a leaf node"),
                    "api_prefix": _field("JetStream API prefix", "an imported API, e.g. JS.other.API; not for claims"),
                    "ledger": _field("Ledger", "prefix of the two buckets that remember claims; airflow if empty"),
                    "console": _field("Console", "a page for links: https://…/{stream}?consumer={consumer}"),
                },
            }
        ],
    }


def _field(label: str, description: str, *, secret: bool = False) -> dict[str, object]:
    """Every field may be empty; without "null" the form would call it required."""
    hidden = {"format": "password"} if secret else {}
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **hidden}}
