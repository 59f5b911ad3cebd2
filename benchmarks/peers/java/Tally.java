import java.lang.reflect.Field;
import sun.misc.Unsafe;

/** Sums the received messages: reads every byte in place. */
final class Tally {
  static final int MESSAGE = 300;
  static final int END = 8; // the length of the last message
  static final Unsafe UNSAFE = unsafe();

  long bytes;
  long sum;
  boolean ended; // all has been sent

  /** A message, or several of MESSAGE bytes behind each other. */
  void take(long address, int length) {
    if (length == END) {
      ended = true;
      return;
    }
    sum += sum(address, length);
    bytes += length;
  }

  /** Every byte, as words in four sums that do not wait for each other. */
  static long sum(long address, int length) {
    long a = 0;
    long b = 0;
    long c = 0;
    long d = 0;
    long at = address;
    long end = address + length;
    for (; at + 32 <= end; at += 32) {
      a += UNSAFE.getLong(at);
      b += UNSAFE.getLong(at + 8);
      c += UNSAFE.getLong(at + 16);
      d += UNSAFE.getLong(at + 24);
    }
    for (; at + 4 <= end; at += 4) {
      a += UNSAFE.getInt(at);
    }
    return a + b + c + d;
  }

  /** So many bytes of memory, none of them zero. */
  static long source(int length) {
    long address = UNSAFE.allocateMemory(length);
    for (int i = 0; i < length; i++) {
      UNSAFE.putByte(address + i, (byte) (i % MESSAGE * 7 + 1));
    }
    return address;
  }

  private static Unsafe unsafe() {
    try {
      Field field = Unsafe.class.getDeclaredField("theUnsafe");
      field.setAccessible(true);
      return (Unsafe) field.get(null);
    } catch (ReflectiveOperationException error) {
      throw new ExceptionInInitializerError(error);
    }
  }
}
