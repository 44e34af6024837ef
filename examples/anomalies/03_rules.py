"""Rules that change while the pipeline runs, and alerts in a queue. It needs a broker: ``queen up``.

The same as ``queen rules apply rules.toml`` on the command line, before and while it runs.
"""

import time
import uuid

from queenstream import Pipeline, Queen, Queue

RULES = f"fraud-{uuid.uuid4().hex[:8]}"  # of this run alone; one of yours has a name that stays
MANY = "COUNT(*) > 3 IN 1h"

with Queen() as queen:
    queen.admin.apply_rules(RULES, {"patterns": {"many": MANY, "some": "COUNT(*) > 1 IN 1h"}})
    run = (
        Pipeline(f"behaviour-{RULES}")
        .source(Queue(f"clicks-{RULES}"))
        .event_time("at")
        .patterns(rules=RULES, by="user")
        .to(Queue(f"alerts-{RULES}"))
        .start(engine="local")
    )

    def click(*seconds: int) -> None:
        queen.queue(f"clicks-{RULES}").push([{"user": "ann", "at": second * 1_000} for second in seconds])

    def show_alert() -> None:
        for message in queen.queue(f"alerts-{RULES}").group("desk").wait("30s").pop():
            print(f"{message.data['pattern']}: {message.data['value']:g} clicks of {message.data['key']}")
            message.ack()

    click(1, 2)
    show_alert()
    # ``many`` stays, and has seen two clicks; ``some`` is another rule now, and begins anew.
    queen.admin.apply_rules(RULES, {"patterns": {"many": MANY, "some": "COUNT(*) > 2 IN 1h"}})
    time.sleep(2.5)  # a process asks for new rules every two seconds
    click(3, 4)
    show_alert()
    click(5)
    show_alert()
    run.stop()
    run.wait()
    queen.admin.delete_rules(RULES)
