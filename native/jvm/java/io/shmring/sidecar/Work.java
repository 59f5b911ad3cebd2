package io.shmring.sidecar;

/** Whose work a request is: a task of an application, which travels with it. */
public record Work(String application, int stage, int partition, long attempt) {
  public static final Work NOBODYS = new Work("", 0, 0, 0);
}
