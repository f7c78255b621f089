"""Schedules: messages that the node publishes by itself, at times of a cron line or an interval.

timetable         when a schedule is due, and which missed times are made up for
schedule_record   the stored record of a schedule, and the rules of its changes
schedule_manager  creation, pause, resumption and removal of schedules
schedule_runner   publishes what is due, on one node of a cluster
"""
