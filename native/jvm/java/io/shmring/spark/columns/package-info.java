/**
 * Messages as Spark's columns, Spark's rows as Arrow's vectors, and the types of Spark for those of a
 * ring. One class lists the types that are read and written by address.
 */
package io.shmring.spark.columns;
