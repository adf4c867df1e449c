"""What the fuzzer's clients do: each step is drawn from the client's own dice."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.fuzzer.clients import Client
from tests.fuzzer.records import ACCEPT, GAP, HOLD, REJECT, RELEASE, At, multirange, offsets_of
from tests.ordered import key_of, obey, reported

MEMBERS = ("m0", "m1", "m2", "m3")
PIPELINES = ("p0", "p1")
OUTCOMES = {"accept": ACCEPT, "release": RELEASE, "reject": REJECT, "gap": GAP, "hold": HOLD}
LOCK_DURATION = "share.record.lock.duration.ms"
CONFIGS = {
    "share.delivery.count.limit": ("2", "3", "5", "7"),
    LOCK_DURATION: ("1000", "5000", "30000"),
    "errors.deadletterqueue.topic.name": ("", "dlq.letters"),
    "share.partition.max.record.locks": ("100", "300", "2000"),
    "share.isolation.level": ("read_committed", "read_uncommitted"),
    "sharequeue.cancelled.run.refund.enable": ("true", "false"),
    "share.renew.acknowledge.enable": ("true", "true", "false"),
}


class Worker(Client):
    """A client that is worker, operator and service in turn."""

    configs = True
    """Whether this run changes configs."""

    def step(self) -> None:
        """One step."""
        steps: list[tuple[float, Callable[[], Any]]] = [
            (34, self.acquire), (34, self.acknowledge), (4, self.steady),
            (4, self.renew), (4, self.give_back), (3, self.sweep), (6, self.repeat), (8, self.observe),
            (7, self.letters),
            (2, self.force), (1, self.pause), (1.5 * self.configs, self.config), (0.7, self.acl), (2.5, self.forward),
            (0.5, self.reset), (0.3, self.forget), (0.3, self.extend), (1.5, self.look),
            (1, self.claim), (1, self.losses), (1, self.sweep_kept), (2 * self.shared.ordered, self.let_keys_go),
        ]  # fmt: skip
        _, step = self.roll.choices(steps, [weight for weight, _ in steps])[0]
        step()
        self.check_reasons()

    # Names.

    def uuid(self) -> str:
        """An id."""
        return str(UUID(int=self.roll.getrandbits(128), version=4))

    def some(self) -> At:
        """A share-partition."""
        return self.roll.choice(self.shared.partitions)

    def named(self, at: At) -> dict[str, Any]:
        """Its name."""
        return {"p_group_id": at[0], "p_topic": at[1], "p_partition": at[2]}

    def topic_id(self, at: At) -> str:
        """What the topic's id is now."""
        return f"{at[1]}-{self.shared.ids.get(at, 0)}"

    def holder(self, at: At, member: str, epoch: int | None = None) -> dict[str, Any]:
        """What each worker's call begins with."""
        known = self.shared.epochs.get(at, 1) if epoch is None else epoch
        return {**self.named(at), "p_state_epoch": known, "p_member_id": member, "p_member_epoch": None}

    # Leases.

    def keep(self, at: At, epoch: int, member: str, rows: Any) -> dict[str, Any] | None:
        """Remember what was leased, where others find it too."""
        rows = [r for r in rows or () if not r["error_code"] and r["offsets"]]
        if not rows:
            return None
        offsets = sorted(o for r in rows for o in offsets_of(r["offsets"]))
        lease = {"at": at, "member": member, "epoch": epoch, "token": rows[0]["token"], "offsets": offsets}
        if self.shared.ordered and not self.ask_for_blocked_keys(lease):
            return None
        self.shared.leases.append(lease)
        return lease

    def ask_for_blocked_keys(self, lease: dict[str, Any]) -> bool:
        """Which keys a lease must hold; return whether it is still there."""
        with self.connection.cursor() as cursor:
            cursor.execute(
                "select key_hashes::text[], first_offsets from sharequeue.blocked_keys(%s, array[%s]::uuid[])",
                (lease["at"][0], lease["token"]),
            )
            rows = cursor.fetchall()
        for hashes, firsts in rows:
            lease["blocked"] = {UUID(key): first for key, first in zip(hashes, firsts, strict=True)}
            lease["before"] = {}
        return bool(rows)

    def some_lease(self) -> dict[str, Any] | None:
        """A lease of anybody's, old ones among them."""
        leases = list(self.shared.leases)
        if not leases:
            return None
        return leases[-1 - int(self.roll.random() ** 2 * len(leases))]

    def fetch(self, at: At) -> dict[str, Any]:
        """How a fetch is to be done."""
        args: dict[str, Any] = {
            "p_max_records": self.roll.choice([1, 3, 10, 40]),
            "p_redelivery": self.roll.choice(["kafka", "fan_out"]),
        }
        if self.roll.random() < 0.5:
            args["p_lock_duration_ms"] = self.roll.choice([1000, 3000, 20000]) * self.shared.second
        if self.roll.random() < 0.3:
            args["p_mode"] = self.roll.choice(["batch_optimized", "record_limit"])
        if args["p_redelivery"] == "kafka" and self.roll.random() < 0.3:
            start, end = self.shared.logs.get(at, (0, 0))
            firsts = list(range(start - start % 10, end, 10))
            if firsts:
                args["p_log_firsts"], args["p_log_lasts"] = array(firsts), array([f + 9 for f in firsts])
        return args

    def acquire(self) -> Any:
        """Take a lease."""
        at, member = self.some(), self.roll.choice(MEMBERS)
        who = self.holder(at, member)
        args = {**who, **self.fetch(at), "p_request_id": self.uuid()}
        if args["p_redelivery"] == "fan_out" and self.roll.random() < 0.2:
            first = self.roll.randrange(200)
            args["p_leave_out"] = f"{{[{first},{first + 30})}}"
        return self.keep(at, who["p_state_epoch"], member, self.send("acquire", **args))

    def asked(self, lease: dict[str, Any]) -> list[int]:
        """Some of a lease's offsets; at times others'."""
        offsets: list[int] = lease["offsets"]
        drawn = self.roll.random()
        if drawn < 0.5:
            return offsets
        if drawn < 0.55:
            return sorted({*offsets, offsets[-1] + 1, self.roll.randrange(300)})
        first = self.roll.randrange(len(offsets))
        return offsets[first : first + self.roll.randint(1, len(offsets))]

    def as_holder(self, lease: dict[str, Any]) -> dict[str, Any]:
        """The holder; at times somebody who has got hold of the token."""
        member = lease["member"] if self.roll.random() < 0.95 else self.roll.choice(MEMBERS)
        epoch = lease["epoch"] if self.roll.random() < 0.9 else None
        return {
            **self.holder(lease["at"], member, epoch),
            "p_token": lease["token"],
            "p_request_id": self.uuid(),
        }

    def acknowledge(self) -> None:
        """Acknowledge a lease: by sets or by batches, with an output at times."""
        lease = self.some_lease()
        if lease is None:
            return
        if self.shared.ordered:
            self.acknowledge_in_order(lease)
            return
        asked, who = self.asked(lease), self.as_holder(lease)
        wait = self.later()
        if self.roll.random() < 0.4:
            self.send("acknowledge_batches", **who, **self.batches(asked), **wait)
            return
        kinds = {o: self.roll.choices([ACCEPT, RELEASE, REJECT, GAP], [60, 30, 6, 3])[0] for o in asked}
        if self.roll.random() < 0.3:
            kinds = dict.fromkeys(asked, ACCEPT)
        sets = {
            f"p_{name}": multirange([o for o, k in kinds.items() if k == kind])
            for kind, name in (
                (ACCEPT, "accept"),
                (RELEASE, "release"),
                (REJECT, "reject"),
                (GAP, "gap"),
            )
        }
        if self.roll.random() < 0.4 and sets["p_release"] != "{}":
            released = [o for o, kind in kinds.items() if kind == RELEASE]
            kept = multirange(self.roll.sample(released, self.roll.randint(1, len(released))))
            self.send("acknowledge_and_keep", **who, **sets, **{"p_not_before": None, **wait}, p_kept=kept)
            return
        outputs = "[]"
        if self.roll.random() < 0.3:
            accepted = sum(k == ACCEPT for k in kinds.values())
            # Now and then in a folder that another group may have by now.
            folder = self.roll.choice(["shared", *[who["p_group_id"]] * 4])
            location = f"/output/{folder}/leases={lease['token']}"
            outputs = json.dumps([{"sink": "s", "location": location, "records": accepted}])
        self.send("acknowledge", **who, **sets, **wait, p_outputs=outputs)

    def acknowledge_in_order(self, lease: dict[str, Any]) -> None:
        """Acknowledge a lease as the rule wants it; at times one who knows nothing of order releases all of it."""
        asked = self.asked(lease)
        if self.roll.random() < 0.1:
            self.send(
                "acknowledge_batches", **self.as_holder(lease), **self.batches(asked, RELEASE), **self.later()
            )
            return
        kinds = {o: self.roll.choices([ACCEPT, RELEASE, REJECT, GAP], [60, 30, 6, 3])[0] for o in asked}
        self.send_in_order(lease, dict.fromkeys(asked, ACCEPT) if self.roll.random() < 0.3 else kinds)

    def send_in_order(self, lease: dict[str, Any], kinds: dict[int, int]) -> None:
        """Send what becomes of these outcomes, and remember what was accepted if it counts."""
        args = self.in_order(lease, kinds)
        rows = self.send("acknowledge_in_order", **args)
        if rows and not rows[0]["error_code"]:
            lease["before"] |= {
                o: kind for name, kind in OUTCOMES.items() for o in offsets_of(args[f"p_{name}"])
            }

    def in_order(self, lease: dict[str, Any], kinds: dict[int, int]) -> dict[str, Any]:
        """The arguments of an acknowledgement that obeys; at times keys are reported only where they must be."""

        def key(offset: int) -> UUID | None:
            return key_of(lease["at"], offset)

        sent = obey(kinds, lease["offsets"], key, lease["blocked"], dict(lease["before"]))
        sent |= {o: kind for o, kind in kinds.items() if o not in lease["offsets"]}
        careless = self.roll.random() < 0.15
        told = {o: kind for o, kind in sent.items() if kind == HOLD or not careless}
        keys = [
            {"key": None if k is None else str(k), "offsets": multirange(offsets)}
            for k, offsets in reported(told, key).items()
        ]
        sets = {
            f"p_{name}": multirange([o for o, k in sent.items() if k == kind])
            for name, kind in OUTCOMES.items()
        }
        wait = {"p_not_before": None, **self.later()}
        return {**self.as_holder(lease), **sets, **wait, "p_keys": json.dumps(keys)}

    def sweep_kept(self) -> None:
        """What nobody needs of the kept records goes."""
        self.send("sweep_kept", p_group_id=self.some()[0])

    def let_keys_go(self) -> None:
        """Dead letters were redriven or discarded: of the last batch that was opened, or of an earlier one."""
        at, first = self.some(), self.roll.randrange(200)
        sequence = max(1, self.shared.letters.get(at, 1) - self.roll.choice([0, 0, 1, 2]))
        self.send(
            "close_letters", **self.named(at), p_sequence=sequence, p_offsets=f"{{[{first},{first + 60})}}"
        )

    def later(self) -> dict[str, Any]:
        """When released records may come back, at times."""
        if self.roll.random() < 0.9:
            return {}
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(
            seconds=self.roll.randint(1, 90) * self.shared.second
        )
        return {"p_not_before": moment.isoformat(), "not_before": moment.timestamp()}

    def batches(self, asked: list[int], whole: int | None = None) -> dict[str, Any]:
        """Runs of neighbours, each with one type."""
        firsts: list[int] = []
        lasts: list[int] = []
        for offset in asked:
            if lasts and offset == lasts[-1] + 1 and (whole is not None or self.roll.random() < 0.9):
                lasts[-1] = offset
            else:
                firsts.append(offset)
                lasts.append(offset)
        types = [
            self.roll.choices([GAP, ACCEPT, RELEASE, REJECT], [3, 60, 30, 7])[0] if whole is None else whole
            for _ in firsts
        ]
        return {
            "firsts": firsts,
            "lasts": lasts,
            "types": types,
            "p_firsts": array(firsts),
            "p_lasts": array(lasts),
            "p_types": array(types),
        }

    def steady(self) -> None:
        """A worker in its loop: whole batches, one after the other."""
        for _ in range(self.roll.randint(2, 8)):
            lease = self.acquire()
            if lease is None:
                return
            if self.shared.ordered:
                self.send_in_order(lease, dict.fromkeys(lease["offsets"], ACCEPT))
                continue
            self.send(
                "acknowledge_batches", **self.as_holder(lease), **self.batches(lease["offsets"], ACCEPT)
            )

    def renew(self) -> None:
        """Renew a lock."""
        lease = self.some_lease()
        if lease is not None:
            who = self.as_holder(lease)
            del who["p_request_id"]
            self.send("renew", **who)

    def give_back(self) -> None:
        """Give back one lease, or all of a member's in a group."""
        lease = self.some_lease()
        if lease is not None:
            self.send(
                "release",
                p_group_id=lease["at"][0],
                p_member_id=lease["member"],
                p_token=lease["token"] if self.roll.random() < 0.8 else None,
                p_cancelled=self.roll.random() < 0.3,
                p_refund=self.roll.random() < 0.1,
            )

    def repeat(self) -> None:
        """A call of anybody's again: the same, or by somebody else, or its id for something else."""
        recent = list(self.shared.recent)
        if not recent:
            return
        call = self.roll.choice(recent)
        if self.roll.random() < 0.7:
            self.again(call)
        else:
            self.send(call.operation, **{**call.args, "p_member_id": self.roll.choice(MEMBERS)})

    def sweep(self) -> None:
        """Settle what has lapsed."""
        self.send("sweep", p_limit=self.roll.choice([1, 100]))

    def forward(self) -> None:
        """Time passes."""
        more = self.roll.choice([0.3, 1.0, 4.0, 31.0]) * self.shared.second
        self.send(
            "clock",
            "update sharequeue.clock_offset set amount = amount + %(more)s * interval '1 second' returning 1",
            more=more,
        )

    # The log, operators.

    def observe(self) -> None:
        """Look at the log, which has grown, lost its beginning, or is another one."""
        at, roll = self.some(), self.roll.random()
        start, end = self.shared.logs.get(at, (0, 0))
        end += self.roll.choice([0, 5, 30])
        if roll < 0.06:
            start = min(end, start + self.roll.randrange(40))
        elif roll < 0.08:
            self.shared.ids[at] = self.shared.ids.get(at, 0) + 1
        self.shared.logs[at] = (start, end)
        self.send(
            "observe",
            **self.named(at),
            p_topic_id=self.topic_id(at),
            p_log_start=start,
            p_log_end=end,
            p_last_stable_offset=end - self.roll.choice([0, 0, 0, min(7, end - start)]),
        )

    def letters(self) -> None:
        """Open dead letters, or close them."""
        at = self.some()
        if self.roll.random() < 0.5:
            rows = self.send("open_dead_letters", **self.named(at), p_max_records=self.roll.choice([1, 50]))
            if rows:
                self.shared.letters[at] = rows[0]["sequence"]
        elif at in self.shared.letters:
            wrong = self.roll.random() < 0.05
            sequence = self.shared.letters[at] + wrong
            self.send(
                "close_dead_letters",
                **self.named(at),
                p_sequence=sequence,
                p_dropped=self.roll.random() < 0.1,
            )

    def force(self) -> None:
        """Move records by hand."""
        lease = self.some_lease()
        if lease is not None:
            asked = self.asked(lease)
            act = self.roll.choice(["release", "release", "dead_letter"])
            self.send(
                "force",
                **self.named(lease["at"]),
                p_offsets=multirange(asked[:5]),
                p_act=act,
                p_execute=self.roll.random() < 0.8,
            )

    def pause(self) -> None:
        """Pause for a moment."""
        at = self.some()
        args = self.named(at) if self.roll.random() < 0.5 else {"p_group_id": at[0]}
        self.send("pause", p_reason="a look", **args)
        self.send("pause", p_reason=None, **args)

    def config(self) -> None:
        """Changes a config of a group."""
        name = self.roll.choice(list(CONFIGS))
        value = self.roll.choice(CONFIGS[name])
        if name == LOCK_DURATION:
            value = str(int(value) * self.shared.second)
        self.send(
            "config",
            "insert into sharequeue.group_configs (group_id, name, value) values (%(group)s, %(name)s, %(value)s)"
            " on conflict (group_id, name) do update set value = excluded.value returning 1",
            group=self.some()[0],
            name=name,
            value=value,
        )

    def acl(self) -> None:
        """Deny somebody, or allow again."""
        rule = {"p_principal": "User:ann", "p_operation": "READ", "p_pattern_type": "LITERAL"}
        rule |= {"p_permission": "DENY", "p_resource_name": self.some()[0]}
        self.send(self.roll.choice(["add_acl", "remove_acls"]), **rule)

    def reset(self) -> None:
        """Begin anew, sometimes with an id that the topic no longer has."""
        at = self.some()
        topic_id = self.topic_id(at) if self.roll.random() < 0.8 else f"{at[1]}-{self.roll.randrange(3)}"
        start, end = self.shared.logs.get(at, (0, 0))
        where = self.roll.randint(start, end)
        epochs = self.send("alter_offsets", **self.named(at), p_topic_id=topic_id, p_start_offset=where)
        if epochs:
            self.shared.epochs[at] = epochs[0]

    def forget(self) -> None:
        """Delete a topic's offsets, or the group, and make what is missing again."""
        at = self.some()
        if self.roll.random() < 0.5:
            self.send("delete_offsets", p_group_id=at[0], p_topic=at[1])
        else:
            self.send("delete_group", p_group_id=at[0])
        self.begin([a for a in self.shared.partitions if a[0] == at[0]])

    def begin(self, partitions: list[At]) -> None:
        """Make share-partitions where there are none."""
        for group in sorted({at[0] for at in partitions}):
            self.send(
                "make_group",
                "insert into sharequeue.share_groups (group_id) values (%(group)s)"
                " on conflict do nothing returning 1",
                group=group,
            )
        for at in partitions:
            start = self.shared.logs.get(at, (0, 0))[0]
            made = {
                **self.named(at),
                "p_topic_id": self.topic_id(at),
                "p_start_offset": start,
                "p_state_epoch": 1,
            }
            if self.send("initialize", **made) == [True]:
                self.shared.epochs[at] = 1

    def claim(self) -> None:
        """Claim a group for a pipeline, some by replacing another one."""
        replaces = self.roll.choice([None, None, *PIPELINES])
        self.send(
            "claim_group",
            p_group_id=self.some()[0],
            p_pipeline=self.roll.choice(PIPELINES),
            p_replaces=replaces,
        )

    def losses(self) -> None:
        """Ask what retention has taken since this was asked last."""
        at = self.some()
        self.send("report_losses", p_group_id=at[0], p_topics=f"{{{at[1]}}}")

    def extend(self) -> None:
        """Longer locks."""
        more = 2.0 * self.shared.second
        self.send("extend_locks", p_amount=f"{more} seconds", seconds=more)

    def look(self) -> None:
        """The invariants hold at any moment."""
        self.send(self.roll.choice(["verify", "verify", "verify_journal"]))


def array(values: list[int]) -> str:
    """Text of an array."""
    return "{" + ",".join(map(str, values)) + "}"
