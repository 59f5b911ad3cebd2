"""Breaks of pushes, claims and takes, each with a case of cases_messages.c."""

from explore.breaks import Break

# CHANGE: edit this for a new case of the explorer
MESSAGES = [
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
        "recovery takes the n of any dead seat for the hole's length",
        "claims.c",
        "&& passed_through(r, h, h + n))",
        ")",
        "producers of two sizes and a consumer; both may die",
    ),
    Break(
        "recovery settles a hole although a living seat has the same intent",
        "claims.c",
        "\t\tif (seat_alive(r, i))\n\t\t\treturn 0;",
        "\t\tif (seat_alive(r, i))\n\t\t\tcontinue;",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "recovery does not check the hole again",
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
        "a consumer trusts its seat's ranges, and not its own record",
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
        "leases of the dead hold producers back on a branch with drop_oldest",
        "floor.c",
        "if (holds_only && load_acquire",
        "if (false && load_acquire",
        "a branch that is overrun, whose only consumer may die",
    ),
    Break(
        "a handle lends its seat to two participants at a time",
        "seats.c",
        "\tif (own == NOBODY || r->lent)",
        "\tif (own == NOBODY)",
        "a consumer's seat is a producer's next; its owner may die",
    ),
    Break(
        "a participant that leaves without the admin lock keeps the seat's lock",
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
        "a woken consumer does not set the bit of the other sleepers",
        "wake.c",
        "\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);",
        "",
        "asleep: two consumers share what a producer pushes",
    ),
    Break(
        "a woken consumer looks for work before it sets the bit of the other sleepers",
        "wake.c",
        "\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);\n"
        "\theavy_barrier(consumer->ring->asymmetric);\n"
        "\tif (has_work(consumer->ring, consumer->branch))\n\t\twake_one(consumer->ring, mask);",
        "\tif (has_work(consumer->ring, consumer->branch))\n\t\twake_one(consumer->ring, mask);\n"
        "\telse\n\t\tfetch_or_seq_cst(&consumer->ring->cursors->asleep.v, mask);",
        "asleep: two consumers share what a producer pushes",
    ),
    Break(
        "a release wakes no producer",
        "takes.h",
        "\tstore_release(&consumer->seat->lease.hold, low);\n"
        "\twake_after_release(consumer->ring, consumer->branch, low);",
        "\tstore_release(&consumer->seat->lease.hold, low);",
        "asleep: a producer and a consumer wake each other",
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
        "an interrupt wakes only one of the branch's consumers",
        "wait.c",
        "\t\twake(consumer->branch, INT_MAX); /* wakes all:",
        "\t\twake(consumer->branch, 1); /* wakes all:",
        "asleep: of two consumers the second one is interrupted",
    ),
    Break(
        "a consumer that is interrupted and leaves does not pass its wake-up on",
        "join.c",
        "\twake_after_release(r, consumer->branch, NONE);\n\tpass_wake_up_on(consumer);",
        "\twake_after_release(r, consumer->branch, NONE);",
        "asleep: of two consumers one is interrupted while a message comes",
    ),
    Break(
        "a woken consumer that stops waiting does not pass its wake-up on",
        "wait.c",
        "\tif (w->consumer)\n"
        "\t\tpass_wake_up_on(w->consumer); /* perhaps the caller waits no more */\n",
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
        "an interrupt wakes only one of the producers",
        "wake.c",
        "\t\t\tfutex(word, FUTEX_WAKE, INT_MAX, NULL);\n\t\t\tbreak;",
        "\t\t\tfutex(word, FUTEX_WAKE, 1, NULL);\n\t\t\tbreak;",
        "asleep: of two producers one is interrupted after the other",
    ),
    Break(
        "a waker whose CAS failed does not release the wish that it cleared",
        "wake.c",
        "\t\tseen = fetch_add_seq_cst(word, 0);\n",
        "",
        "asleep: two wake producers, and one of these falls asleep in between",
        weak=True,
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
        "rows of an unpublished batch count as evidence of a claim behind it",
        "claims.c",
        "\treturn seat >= r->seat_count || load_relaxed(&r->seats[seat].intent.lo) != h;",
        "\treturn true;",
        "a run of two, a message of one slot; both may die",
    ),
    Break(
        "recovery measures a claim that is no hole",
        "claims.c",
        "\tif (h != NONE && is_hole(r, h)) {\n\t\tuint64_t n",
        "\tif (h != NONE) {\n\t\tuint64_t n",
        "two producers and a consumer; a producer may die",
    ),
    Break(
        "a dead consumer keeps the range of a take that failed",
        "takes.c",
        "\t\tif (taken != (end << 8 | index))\n"
        "\t\t\tseat_strike(s, load_relaxed(&s->lease.take_lo), end);\n",
        "",
        "two consumers share; one may die",
    ),
    Break(
        "the advance of the floor reads the holds before taken",
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
        "a stake reads the floor's next value before its hold is stored",
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
        "a woken consumer looks for work to pass on without a barrier",
        "wake.c",
        "\theavy_barrier(consumer->ring->asymmetric);\n\tif (has_work",
        "\tif (has_work",
        "asleep: a message comes while one that was woken passes that on",
        weak=True,
    ),
    Break(
        "a release reads the position of a branch that holds nobody back",
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
        "a producer stores its wish before it announces its sleep",
        "waiter.c",
        "\t\t*seen = fetch_or_seq_cst(word, 1) | 1;\n"
        "\t\tlower_to(&c->producers.wanted, floor_needed(w, slots));"
        " /* lowest floor that a sleeper needs */\n",
        "\t\tlower_to(&c->producers.wanted, floor_needed(w, slots));\n"
        "\t\t*seen = fetch_or_seq_cst(word, 1) | 1;\n",
        "asleep: two wake producers, and one of these falls asleep in between",
    ),
]
