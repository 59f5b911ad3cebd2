/**
 * Messages as Spark's columns, Spark's rows as Arrow's vectors, and which type of Spark stands for
 * which of a ring. A type that is read and written by its address is named in one place here.
 */
package io.shmring.spark.columns;
