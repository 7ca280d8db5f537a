"""Which rights penstock's user lacks, as far as a broker says it before anything is done. For `penstock check`; changes nothing.

What a user may do to a topic or a group the broker says to the user itself. Of a transactional id it does not: its ACLs are
known to who may describe those of the cluster, and are read where that is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from penstock.brokers.kafka.client import REFUSED
from penstock.errors import DestinationRefuses, PenstockError, Remedy, SinkPrivilegeMissing
from penstock.findings import Finding
from penstock.timing import timing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from confluent_kafka.admin import NewTopic

    from penstock.brokers.kafka.client import Clients
    from penstock.sinks.kafka.options import KafkaOptions
    from penstock.sinks.kafka.producing import Producing

_GROUP = (AclOperation.DESCRIBE, AclOperation.READ)
_TRANSACTIONS = (AclOperation.DESCRIBE, AclOperation.WRITE)


def topic_rights(
    producing: Producing, wanted: Mapping[str, Sequence[AclOperation]]
) -> Iterator[Finding]:
    """Operations on topics that are there and that we may not do."""
    allowed = producing.topics.allowed(list(wanted))
    for topic, operations in wanted.items():
        missing = _missing(allowed[topic], operations)
        if missing:
            yield _lacking(producing.clients, f"topic {topic}", missing)


def may_create(clients: Clients, topics: Sequence[NewTopic]) -> Iterator[Finding]:
    """Topics that nobody shows us, and that we may not make as we would."""
    if not topics:
        return
    futures = _validated(clients, topics)
    for wanted in topics:
        topic = wanted.topic
        try:
            clients.ask(
                lambda wanted=wanted: _validated(clients, [wanted])[wanted.topic],  # type: ignore[misc]
                f"making topic {topic}",
                futures[topic],
            )
        except SinkPrivilegeMissing as error:
            yield Finding(error)
        except PenstockError as error:
            if _code(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                yield _lacking(clients, f"topic {topic}", [AclOperation.DESCRIBE])
            elif error.remedy is not Remedy.TIME:
                yield Finding(error)
            elif _code(error) in REFUSED:
                yield Finding(
                    DestinationRefuses(
                        error.what,
                        clients.place,
                        "correct partitions, replication_factor or config of the sink, or the broker's policy",
                    )
                )
            else:
                raise


def _validated(clients: Clients, topics: Sequence[NewTopic]) -> dict[str, Any]:
    found: dict[str, Any] = clients.admin.create_topics(
        list(topics),
        validate_only=True,
        request_timeout=timing().broker_ask_seconds,
    )
    return found


def group_rights(clients: Clients, group: str) -> Iterator[Finding]:
    """What we may not do to the group by which a sink is claimed."""
    admin = clients.admin
    try:
        found = clients.ask(
            lambda: admin.describe_consumer_groups(
                [group],
                include_authorized_operations=True,
                request_timeout=timing().broker_ask_seconds,
            )[group],
            f"describing group {group}",
        )
    except SinkPrivilegeMissing:
        yield _lacking(clients, f"group {group}", _GROUP)
        return
    if missing := _missing(found.authorized_operations, _GROUP):
        yield _lacking(clients, f"group {group}", missing)


def transaction_rights(clients: Clients, options: KafkaOptions, name: str) -> Iterator[Finding]:
    """What we may not do with the transactional id, where its ACLs and our own name are known."""
    user = options.conf.get("sasl.username")
    if user is None or (rules := _rules(clients, name)) is None:
        return
    own = f"User:{user.get_secret_value()}"
    ours = [each for each in rules if each.principal in (own, "User:*")]
    denied = [each for each in _TRANSACTIONS if _is(ours, AclPermissionType.DENY, each)]
    missing = [
        operation
        for operation in _TRANSACTIONS
        if operation in denied or not _is(ours, AclPermissionType.ALLOW, operation)
    ]
    if missing:
        finding = _lacking(clients, f"transactional id {name}", missing)
        # Brokers may be set to allow what no ACL is about; and the name of a login need not be that of its principal: one
        # of the rules may be about us all the same.
        is_certain = denied or any(each.principal == own for each in rules)
        yield finding if is_certain else Finding(finding.error, "warning")


def _rules(clients: Clients, name: str) -> list[Any] | None:
    """The ACLs of a transactional id; None where nobody shows them, or they do not bind us: an administrator's."""
    admin, seconds = clients.admin, timing().broker_ask_seconds
    anything = AclBindingFilter(
        ResourceType.TRANSACTIONAL_ID,
        name,
        ResourcePatternType.MATCH,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        cluster = clients.ask(
            lambda: admin.describe_cluster(
                include_authorized_operations=True, request_timeout=seconds
            ),
            "describing the cluster",
        )
        # Who may not describe ACLs is given an empty list, without an error.
        allowed = cluster.authorized_operations or ()
        if AclOperation.DESCRIBE not in allowed or AclOperation.ALTER in allowed:
            return None
        return list(
            clients.ask(
                lambda: admin.describe_acls(anything, request_timeout=seconds), "describing ACLs"
            )
        )
    except SinkPrivilegeMissing:
        return None
    except PenstockError as error:
        if _code(error) == KafkaError.SECURITY_DISABLED:  # there are none
            return None
        raise


def _is(rules: Sequence[Any], permission: AclPermissionType, operation: AclOperation) -> bool:
    """Whether a rule is about an operation. A right to write is one to describe as well; a denial is not."""
    meant = {operation, AclOperation.ALL}
    if operation is AclOperation.DESCRIBE and permission is AclPermissionType.ALLOW:
        meant.add(AclOperation.WRITE)
    return any(each.permission_type is permission and each.operation in meant for each in rules)


def _missing(
    allowed: Sequence[AclOperation] | None, wanted: Sequence[AclOperation]
) -> list[AclOperation]:
    """A broker without an authorizer says that everything is allowed, or nothing at all."""
    return [each for each in wanted if each not in allowed] if allowed else []


def _lacking(clients: Clients, what: str, operations: Sequence[AclOperation]) -> Finding:
    names = " and ".join(each.name.capitalize() for each in operations)
    return Finding(
        SinkPrivilegeMissing(
            f"penstock's user lacks {names} on {what}",
            clients.place,
            "grant it; docs/howto/kafka.md lists all rights that are needed",
        )
    )


def _code(error: PenstockError) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if cause is not None and cause.args else None
