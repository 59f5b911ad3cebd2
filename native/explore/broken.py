"""Break the protocol on purpose, one way at a time, and see that the explorer notices.

Usage: PYTHONPATH=native python -m explore.broken BUILD_DIRECTORY
"""

import sys

from explore.breaks import END_COUNTED_LATE, Break, Harness, run_all

# CHANGE: edit this for a new case of the explorer
BREAKS = [
    Break(
        "the intent is cleared before the publication",
        "producer.c",
        "\tpublish(entry, lo);\n\tcount(",
        "\tstore_release(&s->intent.lo, NONE);\n\tpublish(entry, lo);\n\tcount(",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "the entry is published before it is filled",
        "producer.c",
        "\tentry_fill(entry, message_time(options), (uint32_t)length, 1,",
        "\tpublish(entry, lo);\n\tentry_fill(entry, message_time(options), (uint32_t)length, 1,",
        "a producer laps a consumer",
    ),
    Break(
        "the entry of several slots is published before it is filled",
        "producer.c",
        "\tentry_fill(entry, message_time(r->options), length, (uint32_t)p->claim_n,",
        "\tpublish(entry, lo);\n"
        "\tentry_fill(entry, message_time(r->options), length, (uint32_t)p->claim_n,",
        "producers of two sizes and a consumer; both may die",
    ),
    Break(
        "recovery takes any n of the dead for the hole's",
        "claims.c",
        "&& passed_through(r, h, h + n))",
        ")",
        "producers of two sizes and a consumer; both may die",
    ),
    Break(
        "recovery does not wait for the living at the same place",
        "claims.c",
        "\t\tif (seat_alive(r, i))\n\t\t\treturn 0;",
        "\t\tif (seat_alive(r, i))\n\t\t\tcontinue;",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "recovery looks at the hole once only",
        "claims.c",
        "\t\tif (is_hole(r, h)) {\n\t\t\t/* A batch's",
        "\t\tif (h < NONE) {\n\t\t\t/* A batch's",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "nobody confirms the last taker's take",
        "takes.h",
        "\t\tconfirm(consumer, last, seen >> 8);",
        "\t\t;",
        "two consumers share; one may die",
    ),
    Break(
        "a take that failed is done before its range is struck",
        "consumer.c",
        "\t(void)ranges_remove(consumer->seat, consumer->range, &consumer->ranges_used, t, end);\n"
        "\tcrash_order();\n"
        "\tstore_relaxed(&consumer->seat->lease.take_end, TAKE_WORD(end, consumer->branch_index));",
        "\tstore_relaxed(&consumer->seat->lease.take_end, TAKE_WORD(end, "
        "consumer->branch_index));\n"
        "\t(void)ranges_remove(consumer->seat, consumer->range, &consumer->ranges_used, t, end);",
        "two consumers share; one may die",
    ),
    Break(
        "a consumer believes what its seat says that it holds",
        "consumer.c",
        "\tRETURN_NOT_OK(consumer_check_held(consumer, first, end));\n",
        "\tseat_read_ranges(s, consumer->range);\n"
        "\tRETURN_NOT_OK(consumer_check_held(consumer, first, end));\n",
        "a stray write falls into what a consumer's seat records",
    ),
    Break(
        "the hold is stored after the take",
        "consumer.c",
        "\tstore_relaxed(&s->lease.hold, t);\n\treturn take_recorded(",
        "\treturn take_recorded(",
        "a producer laps a consumer",
    ),
    Break(
        "the hold is stored after the take of several messages",
        "consumer.c",
        "\tif (load_relaxed(&s->lease.hold) == NONE)\n\t\tstore_relaxed(&s->lease.hold, t);\n",
        "",
        "a producer laps a consumer that takes several",
    ),
    Break(
        "the hold is raised before the range is struck",
        "consumer.c",
        "\tstore_relaxed(&consumer->seat->range[0].lo, NONE);\n"
        "\tconsumer->ranges_used = 0;\n\traise_hold(consumer, NONE);\n",
        "\traise_hold(consumer, NONE);\n"
        "\tstore_relaxed(&consumer->seat->range[0].lo, NONE);\n\tconsumer->ranges_used = 0;\n",
        "a producer laps two consumers, one of which may die",
    ),
    Break(
        "an adoption is not marked",
        "adopt.c",
        "\tstore_relaxed(&s->lease.adopt_from, from + 1);",
        "\t;",
        "leases of the dead in a full orphan: two adopt, one may die",
    ),
    Break(
        "the dead hold producers on a branch with drop_oldest",
        "floor.c",
        "if (holds_only && load_acquire",
        "if (false && load_acquire",
        "a branch that is overrun, whose only consumer may die",
    ),
    Break(
        "an adopter does not look whether its stake came too late",
        "adopt.c",
        "if (from_here > lo && hi > lo) {",
        "if (false) {",
        "leases of the dead on a branch that lapses: a producer laps; the adopter may die",
    ),
    Break(
        "the floor moves in one step",
        "floor.c",
        "\t\tif (load_acquire(&c->graph.changes) != changes)\n"
        "\t\t\tagain = gate(r, &soft, &drops_oldest);",
        "",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "a new branch announces itself before its bit stands",
        "graph.c",
        "\tfetch_or_seq_cst(&c->graph.active, bit(id));\n"
        "\tfetch_add_seq_cst(&c->graph.changes, 1);",
        "\tfetch_add_seq_cst(&c->graph.changes, 1);\n"
        "\tfetch_or_seq_cst(&c->graph.active, bit(id));",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "a branch begins beyond an open claim",
        "graph.c",
        "\t\t\tat = walk_runs(r, at, o->sequence);",
        "\t\t\tat = o->sequence > at ? o->sequence : at;",
        "a branch that begins behind an open claim, whose producer may die",
    ),
    Break(
        "from now on begins at an open claim",
        "graph.c",
        "o->start == SHMRING_LATEST ? behind_published(r, claim) : o->sequence;",
        "o->start == SHMRING_LATEST ? 0 : o->sequence;",
        "a visitor begins at the end, beside an open claim with a message behind it",
    ),
    Break(
        "from now on begins at a claim that was lost",
        "graph.c",
        " (!is_published(r, at - 1) || lies_in_open_claim(r, at - 1)))\n\t\tat--;\n"
        "\treturn at && claim - at < r->capacity ? walk_runs(r, at - 1, at) : at;",
        " !is_published(r, at - 1))\n\t\tat--;\n"
        "\tat = claim;\n"
        "\tfor (uint32_t i = 0; i < r->seat_count; i++) {\n"
        "\t\tuint64_t lo = load_acquire(&r->seats[i].intent.lo);\n"
        "\t\tif (lo < at && lo + load_relaxed(&r->seats[i].intent.n) >= at && is_hole(r, lo))\n"
        "\t\t\tat = lo;\n\t}\n\treturn at;",
        "a visitor begins at the end, beside an open claim and a longer one that was lost",
    ),
    Break(
        "from now on begins behind a row of a batch that is not published",
        "graph.c",
        "(!is_published(r, at - 1) || lies_in_open_claim(r, at - 1))",
        "!is_published(r, at - 1)",
        "a branch begins at the end while a batch is published",
    ),
    Break(
        "what lies before the first of a branch is delivered",
        "consumer.c",
        "\t\tfound->limit = t;\n",
        "",
        "a visitor begins behind an open claim where a producer overwrites",
    ),
    END_COUNTED_LATE,
    Break(
        "who joins passes every marker that follows the last end",
        "end.c",
        "\t\t\tif (at - e.crc >= ended)\n\t\t\t\tbreak;\n",
        "",
        "the end of a stream: of a run without messages, for which one joins",
    ),
    Break(
        "an end is counted by each who finds it",
        "end.c",
        "\t\tbool first = ENDED_AT(before) <= seen >> 8;",
        "\t\tbool first = true;",
        "the end of a stream: two consumers",
    ),
    Break(
        "nobody counts in full the end that a dead one announced",
        "end.c",
        "\tif ((uint8_t)ends != (uint8_t)after)",
        "\tif (after != seen && ENDED_AT(before) <= seen >> 8 && (uint8_t)ends != (uint8_t)after)",
        "the end of a stream: two consumers; one may die",
    ),
    Break(
        "the end wakes nobody",
        "end.c",
        "\tif (moved && marker) /*",
        "\tif (false && moved && marker) /*",
        "asleep: the end of a stream wakes all",
    ),
    Break(
        "an upstream is added to what was read before the lock",
        "graph.c",
        "\tRETURN_NOT_OK(admin_enter_writable(r));\n\tstatus = change_locked(r, id, more, less);",
        "\tuint64_t after = (load_relaxed(&branch_at(r, id)->d.upstream) | more) & ~less;\n"
        "\tRETURN_NOT_OK(admin_enter_writable(r));\n"
        "\tstatus = change_locked(r, id, after, ~after);",
        "two give a branch an upstream each; one may die",
    ),
    Break(
        "who loses an upstream is not woken",
        "graph.c",
        "\t\tderive(r);\n\t\twake_branches(r, bit(id));",
        "\t\tderive(r);",
        "asleep: a branch loses the upstream that held it",
    ),
    Break(
        "a handle's seat is lent to two at a time",
        "seats.c",
        "\tif (own == NOBODY || r->lent)",
        "\tif (own == NOBODY)",
        "a consumer's seat is a producer's next; its owner may die",
    ),
    Break(
        "who leaves without the admin lock keeps the seat's lock",
        "seats.c",
        "\tlock_file_drop(page);",
        "\t(void)page;",
        "a producer leaves without the admin lock while another one recovers",
    ),
    Break(
        "a sleeper does not look again",
        "waiter.c",
        "\tif (ready(w, slots) || is_interrupted(w))\n\t\treturn true;\n\tif (w->seat)",
        "\tif (w->seat)",
        "asleep: a producer and a consumer wake each other",
    ),
    Break(
        "a wake-up is not passed on",
        "wake.c",
        "\tif (has_work(consumer->ring, consumer->branch))\n\t\twake_one(consumer->ring, mask);",
        "",
        "asleep: two consumers share what a producer pushes",
    ),
    Break(
        "who was woken does not show the other sleepers",
        "wake.c",
        "\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);",
        "",
        "asleep: two consumers share what a producer pushes",
    ),
    Break(
        "who was woken looks before it shows the other sleepers",
        "wake.c",
        "\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);\n"
        "\theavy_barrier(consumer->ring->asymmetric);\n"
        "\tif (has_work(consumer->ring, consumer->branch))\n\t\twake_one(consumer->ring, mask);",
        "\tif (has_work(consumer->ring, consumer->branch))\n\t\twake_one(consumer->ring, mask);\n"
        "\telse\n\t\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);",
        "asleep: two consumers share what a producer pushes",
    ),
    Break(
        "an adopter does not ask whether the one before was done",
        "adopt.c",
        "\tif (last && last <= r->seat_count) {",
        "\tif (false) {",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "what is adopted from who had adopted it counts as delivered once before",
        "adopt.c",
        "once_more(RANGE_BEFORE(known[k].hi))",
        "1",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "a release wakes nobody",
        "takes.h",
        "\tstore_release(&consumer->seat->lease.hold, low);\n"
        "\twake_after_release(consumer->ring, consumer->branch, low);",
        "\tstore_release(&consumer->seat->lease.hold, low);",
        "asleep: a producer and a consumer wake each other",
    ),
    Break(
        "a lease on its way back is marked nowhere",
        "orphans.c",
        "\tstore_relaxed(&s->lease.adopt_from, (to + 1) | ADOPT_AWAY);",
        "",
        "one hands back to a full orphan, and may die",
    ),
    Break(
        "a lease is struck before an orphan records it",
        "nack.c",
        "\torphan_record(r, s,",
        "\t(void)ranges_remove(s, consumer->range, &consumer->ranges_used, lo, hi);\n"
        "\torphan_record(r, s,",
        "one hands back to the other, and may die",
    ),
    Break(
        "a dead one's range is struck before an orphan records it",
        "orphans.c",
        "\t\torphan_record(r, s,",
        "\t\tstore_relaxed(&s->range[k].lo, NONE);\n\t\torphan_record(r, s,",
        "two dead of one branch are recovered by one that may die",
    ),
    Break(
        "ranges are merged beside a lease on its way",
        "orphans.c",
        "\tif (before && before != index + 1 && is_moving(r, before - 1))\n\t\treturn;\n",
        "",
        "leases of the dead in a full orphan beside one more dead: two adopt, one may die",
    ),
    Break(
        "who takes over an orphan's seat does not give again what it holds",
        "join.c",
        "\t\tconsumer_gives_again(consumer, consumer->range[k].lo, "
        "RANGE_END(consumer->range[k].hi));",
        "\t\t;",
        "one joins where orphans have all seats, and may die",
    ),
    Break(
        "who asks for the floor misses a lease that is handed back",
        "orphans.c",
        "\tfetch_add_seq_cst(&d->moves, 1);",
        "",
        "one hands back while a producer laps",
    ),
    Break(
        "what is handed back while no seat is free is released",
        "nack.c",
        "\t\treturn keep_to_give_again(consumer, first, end);",
        "\t\treturn shmring_release(consumer, first, end);",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "what is handed back while no seat is free is not given again",
        "consumer.c",
        "\t\tif (consumer->gives_again && consumer_take_again(",
        "\t\tif (false && consumer_take_again(",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "what is given again is counted in the answer alone",
        "adopt.c",
        "\tconsumer_count_delivery(consumer, lo, *end, before);\n",
        "",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "what is handed back while no seat is free may be released the short way",
        "takes.c",
        "\tif (consumer->ranges_used < 2) { "
        "/* makes releases go to release_any(), which checks `returned` */\n"
        "\t\tconsumer->range[consumer->ranges_used].lo = NONE;\n"
        "\t\tconsumer->ranges_used = 2;\n"
        "\t}\n",
        "",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "a sleeping consumer does not look whether it is interrupted",
        "waiter.c",
        "\tif (ready(w, slots) || is_interrupted(w))\n\t\treturn true;\n\tif (w->seat)",
        "\tif (ready(w, slots) || (!w->consumer && is_interrupted(w)))\n\t\treturn true;\n"
        "\tif (w->seat)",
        "asleep: a consumer that waits is interrupted while a message comes",
    ),
    Break(
        "a consumer is interrupted before the flag says so",
        "wait.c",
        "\tstore_relaxed(&consumer->interrupted, on);\n"
        "\tlight_barrier(consumer->ring->asymmetric);\n"
        "\tif (on && is_owned(consumer->ring) && load_relaxed(&consumer->waiting))\n"
        "\t\twake(consumer->branch, INT_MAX); /* wakes all: the other consumers sleep again */",
        "\tif (on && is_owned(consumer->ring) && load_relaxed(&consumer->waiting))\n"
        "\t\twake(consumer->branch, INT_MAX);\n\tstore_relaxed(&consumer->interrupted, on);",
        "asleep: a consumer that waits is interrupted while a message comes",
    ),
    Break(
        "an interrupt wakes one of the branch's consumers",
        "wait.c",
        "\t\twake(consumer->branch, INT_MAX); /* wakes all:",
        "\t\twake(consumer->branch, 1); /* wakes all:",
        "asleep: of two consumers the second one is interrupted",
    ),
    Break(
        "who is interrupted and leaves does not pass its wake-up on",
        "join.c",
        "\twake_after_release(r, consumer->branch, NONE);\n\tpass_wake_up_on(consumer);",
        "\twake_after_release(r, consumer->branch, NONE);",
        "asleep: of two consumers one is interrupted while a message comes",
    ),
    Break(
        "who was woken and stops waiting does not pass its wake-up on",
        "wait.c",
        "\tif (w->consumer)\n"
        "\t\tpass_wake_up_on(w->consumer); /* the caller may not wait again */\n",
        "",
        "asleep: of two consumers one stops waiting at its deadline",
    ),
    Break(
        "a producer is interrupted before the flag says so",
        "wait.c",
        "\tstore_relaxed(&p->interrupted, on);\n"
        "\tif (on && is_owned(p->ring))\n\t\twake_producers(p->ring);",
        "\tif (on && is_owned(p->ring))\n\t\twake_producers(p->ring);\n"
        "\tstore_relaxed(&p->interrupted, on);",
        "asleep: a producer that waits is interrupted",
    ),
    Break(
        "an interrupt wakes one of the producers",
        "wake.c",
        "\t\t\tfutex(word, FUTEX_WAKE, INT_MAX, NULL);\n\t\t\tbreak;",
        "\t\t\tfutex(word, FUTEX_WAKE, 1, NULL);\n\t\t\tbreak;",
        "asleep: of two producers one is interrupted after the other",
    ),
    Break(
        "a waker whose CAS failed gives its cleared wish to nobody",
        "wake.c",
        "\t\tseen = fetch_add_seq_cst(word, 0);\n",
        "",
        "asleep: two wake producers, and one of these falls asleep in between",
        weak=True,
    ),
    Break(
        "who waits for any passes on only the wake-up that the kernel names",
        "wait_any.c",
        "load_acquire(&w.consumer->branch->futex.v) != words[i].value &&",
        "i == 0 &&",
        "asleep: one waits for two branches and takes of one; another consumer of the other",
    ),
    Break(
        "who waits for any and comes too late does not pass its wake-up on",
        "wait_any.c",
        "\t\tif (w.consumer)\n\t\t\tpass_wake_up_on(w.consumer);",
        "",
        "asleep: of two consumers one waits for any until its deadline",
    ),
    Break(
        "who declines does not pass its wake-up on",
        "wait_any.c",
        "\tif (consumer && is_owned(consumer->ring))\n\t\tpass_wake_up_on(consumer);",
        "\t(void)m;",
        "asleep: who waits for any declines what there is",
    ),
    Break(
        "who waits for any does not look again",
        "wait_any.c",
        "\tif (look(a) || is_called(a))\n\t\treturn true;",
        "",
        "asleep: two wait for any, one of them for two branches",
    ),
    Break(
        "the bell wakes nobody",
        "wait_any.c",
        "\tfutex(bell, FUTEX_WAKE, INT32_MAX, NULL);",
        "",
        "asleep: who waits for any hears its bell",
    ),
    Break(
        "who stands at an end behind the dead's leases does not sleep",
        "end.c",
        "\tif (!load_relaxed(&b->d.orphans))\n\t\treturn false;\n\tseen",
        "\treturn false;\n\tseen",
        "asleep: the end waits for what the dead held",
    ),
    Break(
        "who cannot adopt waits for no message either",
        "end.c",
        "\t     !marker))\n\t\treturn false;",
        "\t     false))\n\t\treturn false;",
        "asleep: a message comes while leases of the dead cannot be adopted",
    ),
    Break(
        "who has read a seat does not look whose it is now",
        "seats.c",
        "\t\tif (seat_is_still_of(s, owner))",
        "\t\tif (owner)",
        "a seat is read while it changes hands",
    ),
    Break(
        "who has read a seat looks at its state only",
        "seats.c",
        "now.state == owner->state && now.joined_ns == owner->joined_ns && now.pid",
        "now.state == owner->state && now.pid",
        "a seat is read while it changes hands",
    ),
    Break(
        "a new owner has another time of joining than the last one, and not than all",
        "seats.c",
        "last - now < SET_BACK_NS ? last + 1 : now",
        "last == now ? now + 1 : now",
        "a seat changes hands twice while it is read, and the clock stands still",
    ),
    Break(
        "the intent is stored after the claim",
        "producer.c",
        "\tstore_release(&s->intent.lo, lo);\n"
        "\tif (options & OPT_SINGLE_PRODUCER) {\n"
        "\t\tstore_release(&c->claim.v, lo + n); /* no CAS: no other producer claims */\n"
        "\t} else if (__builtin_expect(!cas_release(&c->claim.v, &lo, lo + n), 0)) {\n"
        "\t\tstore_release(&s->intent.lo, NONE);\n"
        "\t\tcount(&s->counters.contended, 1);\n"
        "\t\treturn false;\n"
        "\t}\n",
        "\tuint64_t at = lo;\n"
        "\tif (!cas_release(&c->claim.v, &at, lo + n))\n"
        "\t\treturn false;\n"
        "\tstore_release(&s->intent.lo, lo);\n",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "rows of a batch that was not published prove a claim behind it",
        "claims.c",
        "\treturn seat >= r->seat_count || load_relaxed(&r->seats[seat].intent.lo) != h;",
        "\treturn true;",
        "a run of two, a message of one slot; both may die",
    ),
    Break(
        "recovery measures what is no hole",
        "claims.c",
        "\tif (h != NONE && is_hole(r, h)) {\n\t\tuint64_t n",
        "\tif (h != NONE) {\n\t\tuint64_t n",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "a dead one keeps what it was about to take",
        "takes.c",
        "\t\tif (taken != (end << 8 | index))\n"
        "\t\t\tseat_strike(s, load_relaxed(&s->lease.take_lo), end);\n",
        "",
        "two consumers share; one may die",
    ),
    Break(
        "who asks for the floor reads the holds before taken",
        "floor.c",
        "\t\tuint64_t taken = load_acquire(&b->taken.v);\n"
        "\t\tuint64_t low = holds_only ? NONE : taken >> 8;\n",
        "\t\tuint64_t low = NONE;\n"
        "\n"
        "\t\tif (!holds_only) {\n"
        "\t\t\tlow = branch_released(r, b, true);\n"
        "\t\t\tuint64_t taken = load_acquire(&b->taken.v) >> 8;\n"
        "\t\t\treturn taken < low ? taken : low;\n"
        "\t\t}\n",
        "a producer laps a consumer",
    ),
    Break(
        "an adopter strikes a lease there before it records it here",
        "adopt.c",
        "\t*status = consumer_record(consumer, lo, end, before);\n",
        "\t(void)ranges_remove(dead, known, &all, lo, end);\n"
        "\t*status = consumer_record(consumer, lo, end, before);\n",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "who asks for the floor misses a lease that is adopted",
        "adopt.c",
        "\tfetch_add_seq_cst(&consumer->branch->d.moves, 1);"
        " /* makes branch_released() read all holds again */\n",
        "",
        "one hands back while a producer laps",
    ),
    Break(
        "a new branch does not look where the floor goes",
        "graph.c",
        "\tif (next > at)\n\t\tat = next;\n",
        "",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "a new branch does not announce itself",
        "graph.c",
        "\tfetch_add_seq_cst(&c->graph.changes, 1);",
        "\t;",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "who moves the floor counts changes after its first look",
        "floor.c",
        "\tuint32_t changes = load_acquire(&c->graph.changes);"
        " /* read before gate(), so no new branch is missed */\n"
        "\tbool soft, drops_oldest;\n"
        "\tuint64_t next = gate(r, &soft, &drops_oldest);\n",
        "\tbool soft, drops_oldest;\n"
        "\tuint64_t next = gate(r, &soft, &drops_oldest);\n"
        "\tuint32_t changes = load_acquire(&c->graph.changes);\n",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "a stake looks where the floor goes before it holds",
        "takes.c",
        "\tif (at < load_relaxed(&consumer->seat->lease.hold))\n"
        "\t\tstore_relaxed(&consumer->seat->lease.hold, at);\n"
        "\tlight_barrier(consumer->ring->asymmetric);"
        " /* pairs with the heavy one in floor_advance() */\n"
        "\tnext = load_acquire(&consumer->ring->cursors->floor_next.v);\n",
        "\tnext = load_acquire(&consumer->ring->cursors->floor_next.v);\n"
        "\tif (at < load_relaxed(&consumer->seat->lease.hold))\n"
        "\t\tstore_relaxed(&consumer->seat->lease.hold, at);\n",
        "a branch that is overrun",
    ),
    Break(
        "a branch is dropped before takes that began are seen",
        "branches.c",
        "\tstore_release(&b->d.state, BRANCH_DROPPING);",
        "\tstore_release(&b->d.state, BRANCH_DROPPED);",
        "a branch is dropped while it is read and gates",
        weak=True,
    ),
    Break(
        "a marker is believed that may be overwritten",
        "end.c",
        "\tif (load_relaxed(&consumer->branch->taken.v) != seen)\n\t\treturn false;\n",
        "",
        "the end of a stream: it overwrites what two look at",
        weak=True,
    ),
    Break(
        "a claim that was given up ends a run",
        "end.c",
        "\t\tat = e.next;\n\t}\n\treturn end;",
        "\t\tat = end = e.next;\n\t}\n\treturn end;",
        "the end of a stream: of a run that was given up: one is there, one joins",
    ),
    Break(
        "a producer looks for sleepers before it publishes",
        "producer.c",
        "\tpublish(entry, lo);\n"
        "\tcount(&s->counters.messages, messages);\n"
        "\tcount(&s->counters.bytes, bytes);\n"
        "\tclaim_done(r, s, options);",
        "\tbool asleep = load_relaxed(&r->cursors->asleep.v);\n"
        "\n"
        "\tpublish(entry, lo);\n"
        "\tstore_release(&s->intent.lo, NONE);\n"
        "\tif (asleep)\n"
        "\t\twake_roots(r);",
        "asleep: a producer and a consumer wake each other",
    ),
    Break(
        "a consumer reads its futex word after its last look",
        "waiter.c",
        "futex(word, FUTEX_WAIT, seen, &timeout)",
        "futex(word, FUTEX_WAIT, w->consumer ? load_relaxed(word) : seen, &timeout)",
        "asleep: a producer and a consumer wake each other",
    ),
    Break(
        "a producer falls asleep without a barrier",
        "waiter.c",
        "\theavy_barrier(w->ring->asymmetric);\n\tif (ready(w, slots) || is_inter",
        "\tif (w->consumer)\n"
        "\t\theavy_barrier(w->ring->asymmetric);\n"
        "\tif (ready(w, slots) || is_inter",
        "asleep: a producer and a consumer wake each other",
        weak=True,
    ),
    Break(
        "who was woken looks without a barrier for what to pass on",
        "wake.c",
        "\theavy_barrier(consumer->ring->asymmetric);\n\tif (has_work",
        "\tif (has_work",
        "asleep: a message comes while one that was woken passes that on",
        weak=True,
    ),
    Break(
        "a release asks where a branch stands that holds nobody back",
        "wake.c",
        " || gates_by_holds_only(b)))",
        "))",
        "asleep: a producer waits for who reads where it may be overrun",
    ),
    Break(
        "a wish is cleared after the wake-up is counted",
        "wake.c",
        "\t\tstore_relaxed(&r->cursors->producers.wanted, NONE);\n"
        "\t\tif (cas32_seq_cst(word, &seen, seen + 1)) {\n",
        "\t\tif (cas32_seq_cst(word, &seen, seen + 1)) {\n"
        "\t\t\tstore_relaxed(&r->cursors->producers.wanted, NONE);\n",
        "asleep: two wake producers, and one of these falls asleep in between",
    ),
    Break(
        "a producer says what it wants before it says that it sleeps",
        "waiter.c",
        "\t\t*seen = fetch_or_seq_cst(word, 1) | 1;\n"
        "\t\tlower_to(&c->producers.wanted, floor_needed(w, slots));"
        " /* lowest floor that a sleeper needs */\n",
        "\t\tlower_to(&c->producers.wanted, floor_needed(w, slots));\n"
        "\t\t*seen = fetch_or_seq_cst(word, 1) | 1;\n",
        "asleep: two wake producers, and one of these falls asleep in between",
    ),
]


if __name__ == "__main__":
    # explore_atomics.h and system.c stand in for the files that are replaced
    harness = Harness(
        "explore", ("-DSHMRING_EXPLORE",), replaces=("atomics.c", "contention.c", "locks.c")
    )
    sys.exit(run_all(harness, BREAKS, *sys.argv[1:]))
