"""The story that `laneway demo` tells: what is promised, played by real workers, and what was seen of it.

    telling     plays all scenarios side by side on one embedded cluster, and collects the promises
    stage       where one scenario plays: its group, topic, worker processes, and the evidence they leave
    app         the handler that every worker of the story runs
    training    the three deliveries of one message, and the poison beside it
    crashes     kill -9 before the result is saved, and behind it
    homework    five messages and an empty one, Ctrl+C, ten at a time and a crash in the middle
    order       a gap and its late predecessor, duplicates, a retry and its followers

What a scenario reports as observed is read from journals, topics, ledgers and effect files. Nothing
remembers what it meant to do.
"""
