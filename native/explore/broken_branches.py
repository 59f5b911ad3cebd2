"""Breaks of branches and of what they hold, each with a case of cases_branches.c."""

from explore.breaks import Break

# CHANGE: edit this for a new case of the explorer
BRANCHES = [
    Break(
        "the floor moves in one step",
        "floor.c",
        "\t\tif (load_acquire(&c->graph.changes) != changes)\n"
        "\t\t\tagain = gate(r, &soft, &drops_oldest);",
        "",
        "a visitor subscribes where a producer overwrites",
    ),
    Break(
        "a new branch announces itself before its bit is set",
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
        "a branch that begins after the last message begins at an open claim",
        "graph.c",
        "o->start == SHMRING_LATEST ? behind_published(r, claim) : o->sequence;",
        "o->start == SHMRING_LATEST ? 0 : o->sequence;",
        "a visitor begins at the end, beside an open claim with a message behind it",
    ),
    Break(
        "a branch that begins after the last message begins at a lost claim",
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
        "a branch that begins after the last message begins behind a row of an unpublished batch",
        "graph.c",
        "(!is_published(r, at - 1) || lies_in_open_claim(r, at - 1))",
        "!is_published(r, at - 1)",
        "a branch begins at the end while a batch is published",
    ),
    Break(
        "a branch delivers messages below its first sequence",
        "consumer.c",
        "\t\tfound->limit = t;\n",
        "",
        "a visitor begins behind an open claim where a producer overwrites",
    ),
    Break(
        "an upstream is added to a value that was read before the lock",
        "graph.c",
        "\tRETURN_NOT_OK(admin_enter_writable(r));\n\tstatus = change_locked(r, id, more, less);",
        "\tuint64_t after = (load_relaxed(&branch_at(r, id)->d.upstream) | more) & ~less;\n"
        "\tRETURN_NOT_OK(admin_enter_writable(r));\n"
        "\tstatus = change_locked(r, id, after, ~after);",
        "two give a branch an upstream each; one may die",
    ),
    Break(
        "a consumer whose branch loses an upstream is not woken",
        "graph.c",
        "\t\tderive(r);\n\t\twake_branches(r, bit(id));",
        "\t\tderive(r);",
        "asleep: a branch loses the upstream that held it",
    ),
    Break(
        "a new branch does not read the floor's next value",
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
        "the advance of the floor reads changes after its first look",
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
        "a branch is dropped before takes that began are seen",
        "branches.c",
        "\tstore_release(&b->d.state, BRANCH_DROPPING);",
        "\tstore_release(&b->d.state, BRANCH_DROPPED);",
        "a branch is dropped while it is read and gates",
        weak=True,
    ),
]
