"""The pure core: functions over values. No I/O, no async, no clock, no environment."""
