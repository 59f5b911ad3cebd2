package io.shmring.spark.request;

import java.io.Serializable;
import java.util.List;

/**
 * One UDF of several that share their arguments.
 *
 * @param arguments which of these it takes, in order
 * @param names what the sidecar's function sees them as
 */
public record UdfUse(List<Integer> arguments, List<String> names)
    implements Serializable {}
