import io.shmring.BranchOptions;
import io.shmring.Consumer;
import io.shmring.MessageHandler;
import io.shmring.Producer;
import io.shmring.Ring;

/** A thousand numbers through a ring, many messages a call. */
public final class Many {
  public static void main(String[] arguments) throws Exception {
    long[] sum = {0};
    try (Ring ring = Ring.createTemporary("numbers", 1024);
        Consumer consumer = ring.consumer("sum", BranchOptions.EARLIEST);
        Producer producer = ring.producer("numbers")) {
      producer.pushMany(
          1000,
          (index, room) -> {
            room.putLong(0, index);
            return Long.BYTES; // at most 300
          });
      MessageHandler add = message -> sum[0] += message.getLong(0);
      while (consumer.drain(add, 256) > 0) {} // takes waiting messages only; with a Duration it waits
    }
    System.out.println(sum[0]);
  }
}
