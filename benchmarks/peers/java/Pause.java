/** What a process does that finds nothing, or no room, before it looks again. */
final class Pause {
  /**
   * Whether there are more processes than cores (`-Dyields=true`): who waits gives the core away, as
   * Agrona's YieldingIdleStrategy, the Disruptor's YieldingWaitStrategy and Chronicle's
   * Pauser.yielding() do. Otherwise it spins with the CPU's hint, as BusySpinIdleStrategy does.
   */
  static final boolean YIELDS = Boolean.getBoolean("yields");

  private Pause() {}

  static void once() {
    if (YIELDS) {
      Thread.yield();
    } else {
      Thread.onSpinWait();
    }
  }
}
