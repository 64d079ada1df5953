"""Components that several pages share."""

from senseapp.app.common.texts import escape_texts

escape_texts()
