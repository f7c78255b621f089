"""Settings of Spark under which sessions that end soon take a third of the processor time."""

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    # compiling, in Java's compilers or Spark's, takes longer than small queries
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
