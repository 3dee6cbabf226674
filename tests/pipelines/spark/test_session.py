"""The Spark that tests share."""

from pyspark.sql import SparkSession


def test_a_session_of_its_own_has_the_settings_of_all(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.range(10).rdd.map(lambda row: row.id * 2).sum() == 90


def test_settings_of_one_test_are_not_those_of_another(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    assert spark.newSession().conf.get("spark.sql.shuffle.partitions") == "2"
