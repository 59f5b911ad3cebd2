# Of the clusters' master and workers, and of what only finds out how to start another JVM.
SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
SPARK_LAUNCHER_OPTS="$SPARK_DAEMON_JAVA_OPTS"
