"""Settings of our clients: a promise stands where nobody says otherwise, and only our own code may."""

from acktree.schemas.clients import consumer_settings


def test_a_group_without_a_commit_begins_at_the_beginning_but_where_our_own_code_asks_otherwise():
    def reset_of(user: dict[str, str], **ours: str) -> str:
        return consumer_settings("there", "g", user, **ours)["auto.offset.reset"]

    agreeing = {"auto.offset.reset": "earliest"}
    assert (reset_of({}), reset_of(agreeing)) == ("earliest", "earliest")
    assert reset_of(agreeing, auto_offset_reset="error") == "error"
