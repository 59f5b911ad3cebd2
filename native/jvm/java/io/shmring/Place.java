package io.shmring;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Objects;

/**
 * Bytes in a ring that a callback may use while it runs, in its own thread: the same object shows one
 * message after the other.
 *
 * <p>The thread that runs the callback is the owner until the callback has returned. Another thread
 * never sees itself as the owner: if it ever was, it has cleared the field itself.
 */
abstract class Place {
  static final VarHandle SHORT = view(short[].class);
  static final VarHandle INT = view(int[].class);
  static final VarHandle LONG = view(long[].class);
  static final VarHandle FLOAT = view(float[].class);
  static final VarHandle DOUBLE = view(double[].class);

  private Thread owner;
  private ByteBuffer memory;
  private int start;
  private int reach;

  private static VarHandle view(Class<?> array) {
    return MethodHandles.byteBufferViewVarHandle(array, ByteOrder.nativeOrder());
  }

  final void open() {
    owner = Thread.currentThread();
  }

  final void end() {
    owner = null;
  }

  /** Whether this thread is in the callback. */
  final boolean isOpen() {
    return owner == Thread.currentThread();
  }

  final void show(Slots slots, long offset, long length) {
    memory = slots.window(offset);
    start = Slots.place(offset);
    reach = (int) Math.min(length, memory.capacity() - start);
  }

  final ByteBuffer memory() {
    return memory;
  }

  /** The place in memory() of `count` bytes from `offset` on. */
  final int at(int offset, int count) {
    check();
    return start + Objects.checkFromIndexSize(offset, count, reach);
  }

  /** The same for a number of so many bytes: the compiler can move this check out of loops. */
  final int atNumber(int offset, int bytes) {
    check();
    return start + Objects.checkIndex(offset, reach - (bytes - 1));
  }

  final void check() {
    if (owner != Thread.currentThread()) {
      throw new RingException(
          Status.CLOSED,
          "these bytes of a ring were lent to a callback, which has returned or runs in another"
              + " thread; copy what is needed later");
    }
  }
}
