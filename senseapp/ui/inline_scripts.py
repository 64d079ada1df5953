"""The scripts that our own pages run in the browser: constant, so that the security policy can name them by hash."""

from __future__ import annotations

REVEAL = """
(function look(tries) {
  const wish = document.querySelector(".reveal");
  const frame = wish && document.querySelector(".st-key-" + wish.dataset.frame);
  if (!frame || frame.scrollHeight < frame.clientHeight + 20) {
    if (tries) setTimeout(look, 150, tries - 1);
    return;
  }
  const place = wish.dataset.place * frame.scrollHeight, margin = 60;
  if (place < frame.scrollTop + margin || place > frame.scrollTop + frame.clientHeight - margin)
    frame.scrollTo({ top: place - frame.clientHeight / 2 });
})(30);
"""
"""Scrolls the frame that ``<div class="reveal" data-frame data-place>`` names until that place can be seen."""

REMEMBER_PLACE = """
sessionStorage.setItem("senseapp.place", location.pathname + location.search);
"""
"""Remembers the page that somebody wanted, while this tab goes to the login and back."""

COME_BACK = """
(function () {
  const place = sessionStorage.getItem("senseapp.place");
  sessionStorage.removeItem("senseapp.place");
  if (place && place !== location.pathname + location.search) location.replace(location.origin + place);
})();
"""
"""Goes to the page that was remembered, once."""

INLINE_SCRIPTS = (REVEAL, REMEMBER_PLACE, COME_BACK)
