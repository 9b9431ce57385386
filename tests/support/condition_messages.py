"""Find condition messages that people do not read: those of more than two sentences, and those that two conditions share."""

import re
from collections import Counter

from trainyard.api.status import TrainingJobStatus

MAX_SENTENCES = 2
SENTENCE_END = re.compile(r"[.!?]\s+(?=[A-Z])")


def unreadable_messages(status: TrainingJobStatus) -> list[str]:
    """Return these messages of a job's conditions; empty where each is short and has a text of its own."""
    messages = [each.message for each in status.conditions if each.message]
    long = [message for message in messages if len(SENTENCE_END.findall(message)) >= MAX_SENTENCES]
    return long + [message for message, count in Counter(messages).items() if count > 1]
