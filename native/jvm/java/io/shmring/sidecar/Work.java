package io.shmring.sidecar;

/** The task of an application that sends a request; the request carries it. */
public record Work(String application, int stage, int partition, long attempt) {
  public static final Work NOBODYS = new Work("", 0, 0, 0);
}
