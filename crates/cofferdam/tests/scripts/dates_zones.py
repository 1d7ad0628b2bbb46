"""Dates and time zones: conversions, daylight saving, ISO weeks, ages, parsing."""

import calendar
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

start = datetime(2026, 3, 28, 12, 0, tzinfo=ZoneInfo("Europe/Berlin"))
for hours in (0, 12, 13, 14, 24):
    moment = (start.astimezone(timezone.utc) + timedelta(hours=hours)).astimezone(start.tzinfo)
    print(moment.isoformat(), moment.tzname(), moment.dst())

meeting = datetime(2026, 11, 30, 9, 30, tzinfo=ZoneInfo("America/New_York"))
for zone in ("UTC", "Asia/Kolkata", "Asia/Tokyo", "Australia/Lord_Howe"):
    print(f"{zone:20} {meeting.astimezone(ZoneInfo(zone)):%a %d %b %Y %H:%M %z}")

twice = [datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")) for fold in (0, 1)]
print([moment.utcoffset().total_seconds() / 3600 for moment in twice], twice[1].timestamp() - twice[0].timestamp())

print(datetime.fromisoformat("2026-02-28T23:59:59.999999+05:45") + timedelta(microseconds=1))
print(datetime.strptime("Thu 05 Mar 2026 07:08 PM", "%a %d %b %Y %I:%M %p"))
print(date(2027, 1, 1).isocalendar(), date.fromisocalendar(2026, 53, 5))
print((date(2026, 11, 30) - date(1999, 12, 31)).days, calendar.isleap(2100))


def age(born, today):
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))


print(age(date(2000, 2, 29), date(2026, 2, 28)), age(date(2000, 2, 29), date(2026, 3, 1)))
print(calendar.month(2026, 2))
print([d.isoformat() for d in (date(2026, m, calendar.monthrange(2026, m)[1]) for m in (1, 2, 4))])
print(datetime.fromtimestamp(0, timezone.utc), datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp())
