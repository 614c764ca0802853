"""Every error survives the way between processes whole: Spark pickles what its workers raise."""

import copy
import pickle
from collections.abc import Iterator

import pytest

from airflow_nats_jetstream import errors as provider_errors
from jetstream_client import errors
from jetstream_client.sequences import Sequences
from jetstream_handoff import errors as handoff_errors

CONSTRUCTED = [
    errors.InvalidValue("batch", 0, "ask for at least one message"),
    handoff_errors.ConsumerReserved("c", "0123456789abcdef", "2026-11-21T03:00:00Z"),
    handoff_errors.CheckpointRefused("c", "0123456789abcdef", "it is an older copy"),
    errors.ConnectionLost("ended", last_sequence=7),
    errors.TlsNotOffered("no TLS"),
    handoff_errors.DeadLettersUnsuitable("DEAD_S", "retention", "interest", "limits"),
    handoff_errors.PartitionsUnsuitable("S", "partitions", 4, "set change_number=True"),
    handoff_errors.ResumeRefused("S", "work", "a dead letter is missing"),
    handoff_errors.LedgerUnsuitable("airflow_claims", "max_age", 1, "must be 0"),
    errors.DuplicatesPossible("S", "purged"),
    errors.BatchPartlyStored("S", 1, 2, "purged"),
    errors.PermissionDenied("a.b"),
    errors.WrongLastSequence(400, 10071, "wrong last sequence: 3"),
    errors.ServerTooOld("allow_atomic", "2.12", "2.11.0"),
    errors.ListingIncomplete("STREAM.LIST", ["S"]),
    errors.NoStreamResponse("a.b"),
    errors.PublishFailed(3, "a.b", 2, errors.NoStreamResponse("a.b")),
    errors.BatchGap(4, 7, 4),
    errors.ServerTooOld("message TTL", "2.11", "2.10.26"),
    errors.TooManyPending(4_000),
    errors.ConsumerDeleted(409, "Consumer Deleted"),
    errors.HeartbeatMissed(10.0),
    errors.DeliveriesMissed(3, 5),
    errors.ConsumerIsPullBased("c"),
    errors.ConsumerIsBound("c"),
    errors.SlowConsumer(7),
    errors.MessageAlreadyAnswered("S", 7),
    errors.DirectGetDisabled("S"),
    errors.BucketRecreated("b"),
    errors.BucketNotFound("b"),
    errors.BucketUnsuitable("b", "max_age", 1, "set 0"),
    errors.ObjectRefused("b", "maximum bytes exceeded"),
    errors.ReferenceInvalid("it has 2 headers Object-Name"),
    errors.ObjectTooLarge("o", 2, 1),
    errors.ObjectMissing("b", "o", "was deleted"),
    errors.ObjectDiffers("b", "o", "another size"),
    errors.ReferencesUnresolved("S", {7: "was deleted"}),
    errors.KeyExists("key 'a' of key-value bucket 'b'", 3),
    errors.WrongRevision("key 'a' of key-value bucket 'b'", 3, 2),
    errors.MessagesMissing("S", Sequences.of([1, 2, 7])),
    provider_errors.SparkJobFailed("driver-20261122023511-0000", "FAILED"),
    handoff_errors.ConsumerUnsuitable("c", "max_deliver", 5, "give -1"),
    handoff_errors.ResetElsewhere("S", "c", 1, 7),
    handoff_errors.DeliveriesGivenUp("S", "c", Sequences.of([1, 2]), "reset it"),
    handoff_errors.AlreadyDone("5f0c9a7be21d", "1-token", {"rows": 1}),
    handoff_errors.LedgerInvalid("record", "KeyError"),
    handoff_errors.StorageFull("$KV.airflow_claims.a.b", "insufficient resources", "raise the limit"),
    handoff_errors.WorkNotDone("it has returned a future", "return its result"),
    errors.WrongDomain("a.b", "leaf", "hub"),
    errors.AddressUnknown("hub", "the servers do not name the account"),
    errors.UpdateRefused(
        errors.InvalidStreamConfig(500, 10052, "can not change storage type"),
        "stream 'S'",
        {"storage": ("file", "memory")},
        "leave it",
    ),
    handoff_errors.ReplayRefused("S", "it is sealed", "name another"),
    handoff_errors.DeletionRefused("2 claims are open", ("5f0c9a7be21d",), 7),
    handoff_errors.ResetRefused("10 acknowledgements are unconfirmed", Sequences.of([1, 2, 7])),
]


def kinds(kind: type[errors.JetStreamError]) -> Iterator[type[errors.JetStreamError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


def test_every_error_with_a_constructor_of_its_own_is_tried() -> None:
    tried = {base for error in CONSTRUCTED for base in type(error).__mro__}
    assert [kind for kind in kinds(errors.JetStreamError) if "__init__" in vars(kind) and kind not in tried] == []


@pytest.mark.parametrize("error", CONSTRUCTED, ids=lambda error: type(error).__name__)
def test_an_error_is_carried_whole(error: errors.JetStreamError) -> None:
    for carried in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(carried), str(carried)) == (type(error), str(error))
        assert {name: str(value) for name, value in vars(carried).items()} == {
            name: str(value) for name, value in vars(error).items()
        }


@pytest.mark.parametrize(
    ("request_", "err_code", "about"),
    [
        ("STREAM.INFO.ORDERS", 10059, "stream 'ORDERS': "),
        ("STREAM.MSG.GET.ORDERS", 10037, "stream 'ORDERS': "),
        ("CONSUMER.INFO.ORDERS.work", 10014, "consumer 'work' of stream 'ORDERS': "),
        ("CONSUMER.INFO.ORDERS.work", 10059, "stream 'ORDERS': "),
        ("CONSUMER.DURABLE.CREATE.ORDERS.work", 10012, "consumer 'work' of stream 'ORDERS': "),
        ("CONSUMER.CREATE.ORDERS.work.orders.>", 10012, "consumer 'work' of stream 'ORDERS': "),
        ("CONSUMER.NAMES.ORDERS", 10059, "stream 'ORDERS': "),
        ("STREAM.NAMES", 10003, ""),
        ("INFO", 10039, ""),
    ],
)
def test_a_refusal_names_what_was_asked_for(request_: str, err_code: int, about: str) -> None:
    answered = {"code": 404, "err_code": err_code, "description": "the server's words"}
    refusal = errors.ApiError.from_response(answered, request_)
    assert str(refusal).startswith(f"{about}the server's words (err_code {err_code}, code 404)")
    assert ("create it" in str(refusal)) == (err_code in (10014, 10059))
    assert refusal.description == "the server's words"
    assert str(pickle.loads(pickle.dumps(refusal))) == str(refusal)
