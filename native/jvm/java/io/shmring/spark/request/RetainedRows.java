package io.shmring.spark.request;

import java.util.ArrayDeque;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * Rows that wait for their answers, first in, first out. The requests under way bound how many they
 * are, so that they need not go to a file as those of Spark's HybridRowQueue may, whose methods are
 * others in each version. Their memory is used again.
 */
final class RetainedRows {
  private static final int CHUNK_BYTES = 1 << 18;
  private static final int HEAD_BYTES = 8; // a row's size; rows stay aligned

  private static final class Chunk {
    private final byte[] bytes;
    private int begin;
    private int end;

    Chunk(int size) {
      this.bytes = new byte[size];
    }
  }

  private final UnsafeRow row;
  private final ArrayDeque<Chunk> chunks = new ArrayDeque<>();
  private final ArrayDeque<Chunk> free = new ArrayDeque<>(); // all of the usual size

  RetainedRows(int columns) {
    this.row = new UnsafeRow(columns);
  }

  void add(UnsafeRow added) {
    int needed = HEAD_BYTES + added.getSizeInBytes();
    Chunk last = chunks.peekLast();
    if (last == null || last.bytes.length - last.end < needed) {
      last = needed > CHUNK_BYTES ? new Chunk(needed) : usual();
      chunks.add(last);
    }
    long at = (long) Platform.BYTE_ARRAY_OFFSET + last.end;
    Platform.putInt(last.bytes, at, added.getSizeInBytes());
    added.writeToMemory(last.bytes, at + HEAD_BYTES);
    last.end += needed;
  }

  private Chunk usual() {
    Chunk used = free.poll();
    return used == null ? new Chunk(CHUNK_BYTES) : used;
  }

  /** The oldest row, until the next call of either method. */
  UnsafeRow remove() {
    Chunk first = chunks.element();
    while (first.begin == first.end) {
      chunks.remove();
      if (first.bytes.length == CHUNK_BYTES) {
        first.begin = 0;
        first.end = 0;
        free.push(first);
      }
      first = chunks.element();
    }
    long at = (long) Platform.BYTE_ARRAY_OFFSET + first.begin;
    int size = Platform.getInt(first.bytes, at);
    row.pointTo(first.bytes, at + HEAD_BYTES, size);
    first.begin += HEAD_BYTES + size;
    return row;
  }
}
