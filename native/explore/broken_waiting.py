"""Breaks of sleeps and wake-ups, each with a case of cases_waiting.c."""

from explore.breaks import Break

# CHANGE: edit this for a new case of the explorer
WAITING = [
    Break(
        "a wait for several branches passes on only the wake-up that the kernel names",
        "wait_any.c",
        "load_acquire(&w.consumer->branch->futex.v) != words[i].value &&",
        "i == 0 &&",
        "asleep: one waits for two branches and takes of one; another consumer of the other",
    ),
    Break(
        "a wait for several branches that comes too late does not pass its wake-up on",
        "wait_any.c",
        "\t\tif (w.consumer)\n\t\t\tpass_wake_up_on(w.consumer);",
        "",
        "asleep: of two consumers one waits for any until its deadline",
    ),
    Break(
        "a consumer that declines a message does not pass its wake-up on",
        "wait_any.c",
        "\tif (consumer && is_owned(consumer->ring))\n\t\tpass_wake_up_on(consumer);",
        "\t(void)m;",
        "asleep: who waits for any declines what there is",
    ),
    Break(
        "a wait for several branches does not look again before it sleeps",
        "wait_any.c",
        "\tif (look(a) || is_called(a))\n\t\treturn true;",
        "",
        "asleep: two wait for any, one of them for two branches",
    ),
    Break(
        "the bell wakes no waiter",
        "wait_any.c",
        "\tfutex(bell, FUTEX_WAKE, INT32_MAX, NULL);",
        "",
        "asleep: who waits for any hears its bell",
    ),
]
