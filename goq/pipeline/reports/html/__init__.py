"""A report as one HTML page with charts in SVG.

page             the page
charts           bars and spreads
small_multiples  a course over time for each partition or group
axes             axes, ticks and the style of charts
"""
