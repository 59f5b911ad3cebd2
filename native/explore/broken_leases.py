"""Breaks of leases, also of those of the dead, each with a case of cases_leases.c."""

from explore.breaks import LEASE_STRUCK_FIRST, RANGE_STRUCK_FIRST, Break

# CHANGE: edit this for a new case of the explorer
LEASES = [
    Break(
        "an adoption is not marked",
        "adopt.c",
        "\tstore_relaxed(&s->lease.adopt_from, from + 1);",
        "\t;",
        "leases of the dead in a full orphan: two adopt, one may die",
    ),
    Break(
        "an adopter does not check whether its stake came too late",
        "adopt.c",
        "if (from_here > lo && hi > lo) {",
        "if (false) {",
        "leases of the dead on a branch that lapses: a producer laps; the adopter may die",
    ),
    Break(
        "an adopter does not check whether the last adopter has finished",
        "adopt.c",
        "\tif (last && last <= r->seat_count) {",
        "\tif (false) {",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "a message that is adopted twice counts as delivered once before",
        "adopt.c",
        "once_more(RANGE_BEFORE(known[k].hi))",
        "1",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "a lease that is handed back is not marked as moving",
        "orphans.c",
        "\tstore_relaxed(&s->lease.adopt_from, (to + 1) | ADOPT_AWAY);",
        "",
        "one hands back to a full orphan, and may die",
    ),
    LEASE_STRUCK_FIRST,
    RANGE_STRUCK_FIRST,
    Break(
        "ranges are merged while a lease is moving",
        "orphans.c",
        "\tif (before && before != index + 1 && is_moving(r, before - 1))\n\t\treturn;\n",
        "",
        "leases of the dead in a full orphan beside one more dead: two adopt, one may die",
    ),
    Break(
        "a consumer that takes over an orphan's seat does not deliver the orphan's messages",
        "join.c",
        "\t\tconsumer_gives_again(consumer, consumer->range[k].lo, "
        "RANGE_END(consumer->range[k].hi));",
        "\t\t;",
        "one joins where orphans have all seats, and may die",
    ),
    Break(
        "the advance of the floor misses a lease that is handed back",
        "orphans.c",
        "\tfetch_add_seq_cst(&d->moves, 1);",
        "",
        "one hands back while a producer laps",
    ),
    Break(
        "a lease that is handed back while no seat is free is released",
        "nack.c",
        "\t\treturn keep_to_give_again(consumer, first, end);",
        "\t\treturn shmring_release(consumer, first, end);",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "a lease that is handed back while no seat is free is not delivered again",
        "consumer.c",
        "\t\tif (consumer->gives_again && consumer_take_again(",
        "\t\tif (false && consumer_take_again(",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "a redelivery is counted in the lease, and not in the seat",
        "adopt.c",
        "\tconsumer_count_delivery(consumer, lo, *end, before);\n",
        "",
        "one hands back where no seat is free, and may die",
    ),
    Break(
        "a lease that is handed back while no seat is free is released by the fast path",
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
        "a consumer that cannot adopt does not wait for messages either",
        "end.c",
        "\t     !marker))\n\t\treturn false;",
        "\t     false))\n\t\treturn false;",
        "asleep: a message comes while leases of the dead cannot be adopted",
    ),
    Break(
        "an adopter strikes a lease from the orphan's seat before it records it in its own",
        "adopt.c",
        "\t*status = consumer_record(consumer, lo, end, before);\n",
        "\t(void)ranges_remove(dead, known, &all, lo, end);\n"
        "\t*status = consumer_record(consumer, lo, end, before);\n",
        "leases of the dead: two adopt, one may die",
    ),
    Break(
        "the advance of the floor misses a lease that is adopted",
        "adopt.c",
        "\tfetch_add_seq_cst(&consumer->branch->d.moves, 1);"
        " /* makes branch_released() read all holds again */\n",
        "",
        "one hands back while a producer laps",
    ),
]
