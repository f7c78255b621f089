"""The exported files as tables of other formats, in place.

catalog  what registers the files of an export
iceberg  an Iceberg table for each exported table
delta    a Delta table in each folder of an export
"""
